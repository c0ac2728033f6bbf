// Products of rows with a weight matrix: of quantised rows with bytes, or of bfloat16 numbers with bfloat16 numbers.
#pragma once
#include <algorithm>

#include "rows.h"
#include "tiles.h"

namespace bandrank {

// DEPTH levels of a row are multiplied together, with the weights of WIDTH outputs.
#if defined(__AMX_INT8__)
constexpr int64_t DEPTH = GROUP * TILE, WIDTH = TILE;
#else
constexpr int64_t DEPTH = GROUP, WIDTH = PANEL;
#endif
constexpr int64_t BF16_STEP = 64;  // bytes of a register

// W, (outputs, inputs), as signed bytes with a scale for each output, or in bfloat16. The weights of split inputs are
// repeated for their copies, so that an output has as many bytes as a row. They are packed in panels of PANEL outputs, a panel in runs of
// DEPTH bytes, a run in blocks of WIDTH outputs, and a block so that the weights of all its outputs for GROUP bytes of a
// row are together. Zeros follow the last output, and the last byte of each.
struct Weights {
    int64_t outputs, inputs;
    int64_t bf16;  // whether rows and weights are bfloat16 numbers, which are not split and whose scales and sums are not used
    Split split;
    const int8_t* panels;  // (panels, bytes / DEPTH, PANEL / WIDTH, DEPTH / GROUP, WIDTH, GROUP)
    const float* scales;   // (padded outputs,)
    const int32_t* sums;   // (padded outputs,) of the bytes of each output
    const float* bias;     // (padded outputs,)

    // The bytes of a row. Those after its inputs and their copies may be anything, and those after bfloat16 numbers are zero.
    int64_t bytes() const {
        const int64_t step = bf16 ? BF16_STEP : DEPTH, used = bf16 ? 2 * inputs : inputs + split.copies;
        return (used + step - 1) / step * step;
    }
    // The weights of the outputs from `output` on, the first of a block of a panel.
    const int8_t* block(int64_t output) const {
        return panels + output / PANEL * PANEL * bytes() + output % PANEL * DEPTH;
    }
    // Those of the outputs from `first` on, the first of a panel, to `last`.
    Weights part(int64_t first, int64_t last) const {
        return {last - first, inputs, bf16, split, block(first), scales + first, sums + first, bias + first};
    }
};

inline int64_t padded(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

// weight: (outputs, given) bytes.  bytes: of a packed output.
inline void pack(const int8_t* weight, int64_t outputs, int64_t given, int64_t bytes, int8_t* panels, int32_t* sums) {
    for (int64_t output = 0; output < padded(outputs); ++output) {
        int8_t* to = panels + output / PANEL * PANEL * bytes + output % PANEL / WIDTH * WIDTH * DEPTH + output % WIDTH * GROUP;
        sums[output] = 0;
        for (int64_t i = 0; i < bytes; ++i) {
            int8_t byte = output < outputs && i < given ? weight[output * given + i] : 0;
            to[i / DEPTH * DEPTH * PANEL + i % DEPTH / GROUP * WIDTH * GROUP + i % GROUP] = byte;
            sums[output] += byte;
        }
    }
}

// Sums of products come in blocks of TILE_ROWS rows by BLOCK_OUTPUTS outputs.
#if defined(__AMX_INT8__)
constexpr int BLOCK_VECTORS = 2;
#else
constexpr int BLOCK_VECTORS = TILE_VECTORS;
#endif
constexpr int BLOCK_OUTPUTS = BLOCK_VECTORS * LANES;

#if defined(__AMX_INT8__)
// The products of `count` rows with a block of weights, (TILE_ROWS, BLOCK_OUTPUTS), by tiles; whole tiles of rows are read
// and written. The tiles compute by themselves: between their instructions, the thread calls work(from, to) for shares of
// 0 .. `amount`.
template <Of OF, class Work>
inline void multiply_block(int64_t count, const Level* rows, int64_t bytes, const int8_t* weights, int32_t* sums,
                           int64_t amount, Work&& work) {
    const int64_t share = (amount * DEPTH + bytes - 1) / bytes;
    int64_t next = 0;
    auto meanwhile = [&] {
        const int64_t from = next;
        next = std::min(from + share, amount);
        work(from, next);
    };
    const Operand x{[=](int64_t step) { return rows + step * DEPTH; }, bytes, TILE * bytes};
    const Operand w{[=](int64_t step) { return weights + step * DEPTH * PANEL; }, DEPTH, DEPTH * TILE};
    auto multiply = [&](auto two) {
        multiply_tiles<OF, two, true>(bytes / DEPTH, x, w, sums, BLOCK_OUTPUTS * sizeof *sums, meanwhile);
    };
    count > TILE ? multiply(std::true_type{}) : multiply(std::false_type{});
}
#else
// The products of ROWS rows with a panel. A function of its own, so that all sums are in registers whatever the compiler
// makes of its callers; a loop over the sums that is not unrolled would keep them in memory.
template <Of OF, int ROWS>
[[gnu::noinline]] void multiply_tile(const Level* rows, int64_t bytes, const int8_t* panel, int32_t* sums) {
    Ints totals[ROWS * TILE_VECTORS];
    clear(totals);
    for (int64_t i = 0; i < bytes; i += GROUP) {
        Ints weights[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; ++v) weights[v] = load_weights(panel + i * PANEL + v * LANES * GROUP);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            int32_t group;
            static_assert(sizeof group == GROUP * sizeof(Level));
            std::memcpy(&group, rows + r * bytes + i, sizeof group);
            const Ints x = Ints{} + group;
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; ++v) {
                Ints& total = totals[r * TILE_VECTORS + v];
                total = add_products<OF>(total, x, weights[v]);
            }
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < ROWS * TILE_VECTORS; ++i) store(sums + i * LANES, totals[i]);
}

// The same for `count` rows, at most ROWS.
template <Of OF, int ROWS = TILE_ROWS>
inline void multiply_rows(int64_t count, const Level* rows, int64_t bytes, const int8_t* panel, int32_t* sums) {
    if constexpr (ROWS > 1)
        if (count < ROWS) return multiply_rows<OF, ROWS - 1>(count, rows, bytes, panel, sums);
    multiply_tile<OF, ROWS>(rows, bytes, panel, sums);
}

// The same after all of `work`.
template <Of OF, class Work>
inline void multiply_block(int64_t count, const Level* rows, int64_t bytes, const int8_t* panel, int32_t* sums,
                           int64_t amount, Work&& work) {
    work(0, amount);
    multiply_rows<OF>(count, rows, bytes, panel, sums);
}
#endif

// The sums of products of `count` rows from row `first` on with BLOCK_OUTPUTS outputs from `output` on.
struct Block {
    int32_t* sums;  // of bfloat16 numbers: float32
    const Quantisation* steps;
    int64_t first, count, output;
};

// Writes the values of some rows of a block.
template <Of OF, class Write>
inline void finish(const Block& block, int64_t from, int64_t to, const Weights& w, const Write& write) {
    Ints weight_sums[BLOCK_VECTORS];
    Floats scales[BLOCK_VECTORS], bias[BLOCK_VECTORS];
    for (int v = 0; v < BLOCK_VECTORS; ++v) {
        const int64_t output = block.output + v * LANES;
        bias[v] = load<Floats>(w.bias + output);
        if constexpr (OF == Of::BF16) continue;
        weight_sums[v] = load<Ints>(w.sums + output);
        scales[v] = load<Floats>(w.scales + output);
    }
    for (int64_t row = from; row < to; ++row)
        for (int v = 0; v < BLOCK_VECTORS; ++v) {
            const Ints sums = load<Ints>(block.sums + row * BLOCK_OUTPUTS + v * LANES);
            Floats value;
            if constexpr (OF == Of::BF16) {
                value = (Floats)sums;
            } else {
                const Quantisation step = block.steps[row];
                value = to_floats(sums - step.zero * weight_sums[v]) * (scales[v] * step.scale);
            }
            write(block.first + row, block.output + v * LANES, value + bias[v]);
        }
}

// y = x W^T + bias for prepared rows x: write(row, output, LANES values). Outputs beyond the last are written too.
// steps: of quantised rows; those of bfloat16 rows may be anything.
template <Of OF, class Write>
inline void multiply(const Level* rows, const Quantisation* steps, int64_t count, const Weights& w, Write write) {
    const int64_t bytes = w.bytes();
    [[maybe_unused]] const Tiles tiles;
    alignas(64) int32_t sums[2][TILE_ROWS * BLOCK_OUTPUTS];
    Block before{};
    int which = 0;
    for (int64_t output = 0; output < padded(w.outputs); output += BLOCK_OUTPUTS)
        for (int64_t row = 0; row < count; row += TILE_ROWS) {
            const Block now{sums[which], steps + row, row, std::min<int64_t>(TILE_ROWS, count - row), output};
            multiply_block<OF>(now.count, rows + row * bytes, bytes, w.block(output), now.sums, before.count,
                               [=, &w](int64_t from, int64_t to) { finish<OF>(before, from, to, w, write); });
            before = now;
            which = 1 - which;
        }
    finish<OF>(before, 0, before.count, w, write);
}

}  // namespace bandrank
