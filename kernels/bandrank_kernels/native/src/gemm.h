// Products of quantised rows with a weight matrix of bytes.
#pragma once
#include "rows.h"

namespace bandrank {

// W, (outputs, inputs), as signed bytes with a scale for each output, packed in panels of PANEL outputs: of each four
// inputs, the four bytes of every output of the panel are together. Behind the last output are zeros.
struct Weights {
    int64_t outputs, inputs;
    const int8_t* panels;  // (panels, inputs / 4, PANEL, 4)
    const float* scales;   // (padded outputs,)
    const int32_t* sums;   // (padded outputs,) of the bytes of each output
    const float* bias;     // (padded outputs,)
    const float* smooth;   // (inputs,) multiplied into rows before they are quantised; or null
};

inline int64_t padded(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

inline void pack(const int8_t* weight, int64_t outputs, int64_t inputs, int8_t* panels, int32_t* sums) {
    for (int64_t output = 0; output < padded(outputs); ++output) {
        int8_t* to = panels + output / PANEL * PANEL * inputs + output % PANEL * 4;
        sums[output] = 0;
        for (int64_t i = 0; i < inputs; ++i) {
            int8_t byte = output < outputs ? weight[output * inputs + i] : 0;
            to[i / 4 * PANEL * 4 + i % 4] = byte;
            sums[output] += byte;
        }
    }
}

// One tile: ROWS rows by a panel. finish(row, output, sums) receives LANES sums of products at a time.
template <int ROWS, class Finish>
inline void multiply_tile(const uint8_t* rows, int64_t inputs, const int8_t* panel, Finish&& finish) {
    Ints totals[ROWS][TILE_VECTORS] = {};
    for (int64_t i = 0; i < inputs; i += 4) {
        Ints weights[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; ++v) weights[v] = load<Ints>(panel + i * PANEL + v * LANES * 4);
        for (int r = 0; r < ROWS; ++r) {
            int32_t four;
            std::memcpy(&four, rows + r * inputs + i, 4);
            Ints x = Ints{} + four;
            for (int v = 0; v < TILE_VECTORS; ++v) totals[r][v] = add_products(totals[r][v], x, weights[v]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) finish(r, v * LANES, totals[r][v]);
}

// y = x W^T + bias for quantised rows x: write(row, output, LANES values). Outputs beyond the last are written too.
template <class Write>
inline void multiply(const uint8_t* rows, const Quantisation* steps, int64_t count, const Weights& w, Write&& write) {
    for (int64_t first = 0; first < w.outputs; first += PANEL) {
        const int8_t* panel = w.panels + first * w.inputs;
        int64_t row = 0;
        auto finish = [&](int r, int offset, Ints totals) {
            int64_t output = first + offset;
            Quantisation step = steps[row + r];
            Ints centred = totals - step.zero * load<Ints>(w.sums + output);
            Floats scale = load<Floats>(w.scales + output) * step.scale;
            write(row + r, output, to_floats(centred) * scale + load<Floats>(w.bias + output));
        };
        for (; row + TILE_ROWS <= count; row += TILE_ROWS)
            multiply_tile<TILE_ROWS>(rows + row * w.inputs, w.inputs, panel, finish);
        for (; row < count; ++row) multiply_tile<1>(rows + row * w.inputs, w.inputs, panel, finish);
    }
}

}  // namespace bandrank
