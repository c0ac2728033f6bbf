// Products of quantised rows with a weight matrix of bytes.
#pragma once
#include <algorithm>

#include "rows.h"

namespace bandrank {

// W, (outputs, inputs), as signed bytes with a scale for each output. The weights of split inputs are repeated for their
// copies, so that an output has as many bytes as a row. They are packed in panels of PANEL outputs: of each four bytes of
// a row, those of every output of the panel are together. Behind the last output are zeros.
struct Weights {
    int64_t outputs, inputs;
    Split split;
    const int8_t* panels;  // (panels, bytes / 4, PANEL, 4)
    const float* scales;   // (padded outputs,)
    const int32_t* sums;   // (padded outputs,) of the bytes of each output
    const float* bias;     // (padded outputs,)

    int64_t bytes() const { return inputs + split.copies; }  // of a row
};

inline int64_t padded(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

// weight: (outputs, bytes).
inline void pack(const int8_t* weight, int64_t outputs, int64_t bytes, int8_t* panels, int32_t* sums) {
    for (int64_t output = 0; output < padded(outputs); ++output) {
        int8_t* to = panels + output / PANEL * PANEL * bytes + output % PANEL * 4;
        sums[output] = 0;
        for (int64_t i = 0; i < bytes; ++i) {
            int8_t byte = output < outputs ? weight[output * bytes + i] : 0;
            to[i / 4 * PANEL * 4 + i % 4] = byte;
            sums[output] += byte;
        }
    }
}

// One tile: the sums of products of ROWS rows with a panel, (ROWS, PANEL). A function of its own, so that all sums are in
// registers whatever the compiler makes of its callers.
template <int ROWS>
[[gnu::noinline]] void multiply_tile(const uint8_t* rows, int64_t bytes, const int8_t* panel, int32_t* sums) {
    Ints totals[ROWS][TILE_VECTORS] = {};
    for (int64_t i = 0; i < bytes; i += 4) {
        Ints weights[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; ++v) weights[v] = load<Ints>(panel + i * PANEL + v * LANES * 4);
        for (int r = 0; r < ROWS; ++r) {
            int32_t four;
            std::memcpy(&four, rows + r * bytes + i, 4);
            Ints x = Ints{} + four;
            for (int v = 0; v < TILE_VECTORS; ++v) totals[r][v] = add_products(totals[r][v], x, weights[v]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < TILE_VECTORS; ++v) store(sums + r * PANEL + v * LANES, totals[r][v]);
}

// The same for `count` rows, at most ROWS.
template <int ROWS = TILE_ROWS>
inline void multiply_rows(int64_t count, const uint8_t* rows, int64_t bytes, const int8_t* panel, int32_t* sums) {
    if constexpr (ROWS > 1)
        if (count < ROWS) return multiply_rows<ROWS - 1>(count, rows, bytes, panel, sums);
    multiply_tile<ROWS>(rows, bytes, panel, sums);
}

// y = x W^T + bias for quantised rows x: write(row, output, LANES values). Outputs beyond the last are written too.
template <class Write>
inline void multiply(const uint8_t* rows, const Quantisation* steps, int64_t count, const Weights& w, Write&& write) {
    const int64_t bytes = w.bytes();
    alignas(64) int32_t products[TILE_ROWS * PANEL];
    for (int64_t first = 0; first < w.outputs; first += PANEL) {
        const float *scales = w.scales + first, *bias = w.bias + first;
        const int32_t* sums = w.sums + first;
        for (int64_t row = 0; row < count; row += TILE_ROWS) {
            const int64_t tile = std::min<int64_t>(TILE_ROWS, count - row);
            multiply_rows(tile, rows + row * bytes, bytes, w.panels + first * bytes, products);
            for (int64_t r = 0; r < tile; ++r) {
                const Quantisation step = steps[row + r];
                for (int v = 0; v < PANEL; v += LANES) {
                    Ints centred = load<Ints>(products + r * PANEL + v) - step.zero * load<Ints>(sums + v);
                    Floats scale = load<Floats>(scales + v) * step.scale;
                    write(row + r, first + v, to_floats(centred) * scale + load<Floats>(bias + v));
                }
            }
        }
    }
}

}  // namespace bandrank
