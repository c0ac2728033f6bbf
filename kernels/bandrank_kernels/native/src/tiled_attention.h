// Attention by AMX tiles: products of bfloat16 numbers, summed in float32, and a softmax in float32 between them.
#pragma once
#include "attention_task.h"
#include "tiles.h"
#include "words.h"

namespace bandrank {

#if defined(__AMX_BF16__)
typedef uint16_t Bf16;  // a bfloat16 number
typedef Bf16 Bf16s __attribute__((vector_size(2 * LANES)));

inline Bf16s to_bf16(Floats x) { return (Bf16s)_mm512_cvtneps_pbh((__m512)x); }

constexpr int64_t STEP = 2 * TILE;  // numbers in a row of a tile

inline int64_t whole_steps(int64_t count) { return (count + STEP - 1) / STEP * STEP; }

// The first `count` lanes of a register, or all of them.
inline __mmask16 first_lanes(int64_t count) {
    return (__mmask16)_bzhi_u32(0xffff, (uint32_t)std::clamp<int64_t>(count, 0, LANES));
}

// The first `count` numbers, at most a register, followed by minus infinity.
inline Floats load_some(const float* from, int64_t count) {
    return (Floats)_mm512_mask_loadu_ps((__m512)all(-INFINITY), first_lanes(count), from);
}

// The keys and values of a task in bfloat16: those of its runs of keys and, from `band` on, those of its band, both followed
// by rows of zeros up to a whole step.
struct TiledKeys {
    int64_t shared, band;        // shared: the rows of the runs of keys
    int64_t stride;              // from one pair of numbers of all keys to the next
    const float *keys, *values;  // bfloat16: (depth / 2, stride, 2) and (rows / 2, head_dim, 2)

    static TiledKeys of(Rows k, Rows v, const Task& task, int64_t head_dim, AttentionScratch& scratch) {
        static constexpr float zeros[MOST_NUMBERS] = {};
        const int64_t shared = task.shared(), band = whole_steps(shared), depth = whole_steps(head_dim);
        const int64_t rows = band + (task.band.count ? whole_steps(task.band.count) + STEP : 0);
        const int64_t stride = rows + TILE;  // an odd number of cache lines, so that they spread over the sets of the cache
        float* keys = scratch.keys.room(depth / 2 * stride);
        float* values = scratch.values.room(rows / 2 * head_dim);
        const float *of_keys[LANES], *of_values[LANES];
        int64_t place = 0;
        auto add = [&](const float* key, const float* value) {
            of_keys[place % LANES] = key, of_values[place % LANES] = value;
            if (++place % LANES) return;
            for (int64_t d = 0; d < depth; d += STEP) {
                Floats block[LANES];
                for (int lane = 0; lane < LANES; ++lane) block[lane] = TwoBf16::along(of_keys[lane], d, head_dim);
                transpose(block);
                for (int i = 0; i < LANES; ++i) store(keys + (d / 2 + i) * stride + place - LANES, block[i]);
            }
            for (int lane = 0; lane < LANES; lane += 2)
                for (int64_t d = 0; d < head_dim; d += LANES)
                    store(values + (place - LANES + lane) / 2 * head_dim + d,
                          paired_bf16(load<Floats>(of_values[lane] + d), load<Floats>(of_values[lane + 1] + d)));
        };
        for (const Run& run : task.keys)
            for (int64_t row = run.first; row < run.end(); ++row) add(k[row], v[row]);
        while (place < band) add(zeros, zeros);
        for (int64_t row = task.band.first; row < task.band.end(); ++row) add(k[row], v[row]);
        while (place < rows) add(zeros, zeros);
        return {shared, band, stride, keys, values};
    }
};

constexpr int ABREAST = 4;  // query rows whose softmax is computed side by side

// The weights of ABREAST query rows, in bfloat16, from their logits, and 1 over the sum of each. A row has `columns` of both, and
// sees the first `shared` and those of `in_band`.  stride: from row to row.
inline void weigh(const float* logits, int64_t columns, int64_t stride, int64_t shared, const Run (&in_band)[ABREAST],
                  float scale, Bf16* weights, float* inverse) {
    int64_t longest = 0;
    for (const Run& run : in_band) longest = std::max(longest, run.count);
    Floats most[ABREAST], norm[ABREAST], top[ABREAST];
    for (Floats& each : most) each = all(-INFINITY);
    clear(norm);
    int64_t j = 0;
    for (; j + LANES <= shared; j += LANES)
        for (int row = 0; row < ABREAST; ++row) most[row] = larger(load<Floats>(logits + row * stride + j), most[row]);
    for (int row = 0; row < ABREAST; ++row) most[row] = larger(load_some(logits + row * stride + j, shared - j), most[row]);
    for (j = 0; j < longest; j += LANES)
        for (int row = 0; row < ABREAST; ++row)
            most[row] = larger(load_some(logits + row * stride + in_band[row].first + j, in_band[row].count - j), most[row]);
    for (int row = 0; row < ABREAST; ++row) top[row] = all(highest(most[row]));
    auto weight = [&](int row, Floats logits) {
        const Floats w = power_of_two((logits - top[row]) * scale, SHORT_POWER);  // of at most zero; bfloat16 keeps no more
        norm[row] += w;
        return to_bf16(w);
    };
    for (j = 0; j + LANES <= shared; j += LANES)
        for (int row = 0; row < ABREAST; ++row)
            store(weights + row * stride + j, weight(row, load<Floats>(logits + row * stride + j)));
    if (j < shared)
        for (int row = 0; row < ABREAST; ++row)
            store(weights + row * stride + j, weight(row, load_some(logits + row * stride + j, shared - j)));
    for (j = (shared + LANES - 1) / LANES * LANES; j < columns; j += LANES)
        for (int row = 0; row < ABREAST; ++row) store(weights + row * stride + j, Bf16s{});
    for (j = 0; j < longest; j += LANES)
        for (int row = 0; row < ABREAST; ++row) {
            const int64_t at = row * stride + in_band[row].first + j, left = in_band[row].count - j;
            _mm256_mask_storeu_epi16(weights + at, first_lanes(left), (__m256i)weight(row, load_some(logits + at, left)));
        }
    for (int row = 0; row < ABREAST; ++row) inverse[row] = 1.0f / sum(norm[row]);
}

// Attention of up to TILE, or 2 TILE, query rows of a task from `first` on.
template <bool TWO>
inline void attend_tiles(Rows q, const Task& task, int64_t first, const TiledKeys& to, int64_t head_dim, Rows out,
                         AttentionScratch& scratch) {
    constexpr int ROWS = TWO ? 2 * TILE : TILE;
    const float scale = LOG2_E / std::sqrt((float)head_dim);
    const int64_t count = std::min<int64_t>(ROWS, task.queries.end() - first), depth = whole_steps(head_dim);
    const InBand seen(task, first, count, TwoBf16::COUNT);
    const int64_t columns = to.band + whole_steps(seen.count);
    const int64_t stride = (columns / STEP | 1) * STEP;  // an odd number of cache lines, as of keys
    auto place = [=](int64_t column) { return column < to.band ? column : column + seen.near; };
    Bf16* queries = scratch.bf16.room(ROWS * (depth + stride));
    Bf16* weights = queries + ROWS * depth;
    float* logits = scratch.weights.room(ROWS * stride);
    float* sums = scratch.queries.room(ROWS * head_dim);
    auto nothing = [] {};

    for (int64_t row = 0; row < count; ++row)
        for (int64_t d = 0; d < depth; d += STEP) store(queries + row * depth + d, TwoBf16::along(q[first + row], d, head_dim));
    const Operand by_row{[=](int64_t step) { return queries + step * STEP; }, depth * 2, TILE * depth * 2};
    for (int64_t column = 0; column < columns; column += STEP) {
        const float* keys = to.keys + place(column);
        const Operand by_key{[=](int64_t step) { return keys + step * TILE * to.stride; }, to.stride * 4, 64};
        const int64_t left = (column < to.band ? to.shared : to.band + seen.count) - column;
        auto multiply = [&](auto two) {
            multiply_tiles<Of::BF16, TWO, two>(depth / STEP, by_row, by_key, logits + column, stride * 4, nothing);
        };
        left > TILE ? multiply(std::true_type{}) : multiply(std::false_type{});
    }

    float inverse[ROWS];
    for (int64_t row = 0; row < count; row += ABREAST) {
        Run in_band[ABREAST];
        for (int i = 0; i < ABREAST; ++i) {
            const int64_t at = seen.offset + row + i - seen.near, low = std::max<int64_t>(0, at - task.window);
            in_band[i] = {to.band + low, std::max<int64_t>(0, std::min(seen.count, at + seen.ahead + 1) - low)};
        }
        weigh(logits + row * stride, columns, stride, to.shared, in_band, scale, weights + row * stride, inverse + row);
    }

    const Operand by_weight{[=](int64_t step) { return weights + step * STEP; }, stride * 2, TILE * stride * 2};
    for (int64_t d = 0; d < head_dim; d += STEP) {
        const float* values = to.values + d;
        const Operand by_value{[=](int64_t step) { return values + place(step * STEP) / 2 * head_dim; }, head_dim * 4, 64};
        auto multiply = [&](auto two) {
            multiply_tiles<Of::BF16, TWO, two>(columns / STEP, by_weight, by_value, sums + d, head_dim * 4, nothing);
        };
        head_dim - d > TILE ? multiply(std::true_type{}) : multiply(std::false_type{});
    }
    for (int64_t row = 0; row < count; ++row)
        for (int64_t d = 0; d < head_dim; d += LANES)
            store((float*)out[first + row] + d, load<Floats>(sums + row * head_dim + d) * inverse[row]);
}
#endif

}  // namespace bandrank
