// Attention of a few rows over a few runs of rows, with one softmax (Schlatt et al. 2024, section 3.2).
#pragma once
#include "tiled_attention.h"
#include "words.h"

namespace bandrank {

constexpr int FEW = 4;           // fewer query rows are computed one by one, with keys in the lanes
constexpr int MOST_TOGETHER = 8;  // keys whose products run side by side, and dimensions whose sums do

// The softmax of one query row over the keys that it has met so far: their largest logit, the sum of
// exp(logit - largest), and the sum of the values with these weights, `head_dim` numbers.
struct Softmax {
    float top, norm;
    float* sums;

    Softmax(float* sums, int64_t head_dim) : top(-INFINITY), norm(0.0f), sums(sums) {
        std::fill(sums, sums + head_dim, 0.0f);
    }
    Softmax(float* sums, float top, float norm) : top(top), norm(norm), sums(sums) {}

    // keys, values: rows of head_dim numbers, at least one.  weights: room for `count` and a register.  added: what is
    // added to the logits, followed by -inf; or null.
    void meet(const float* query, const float* const* keys, const float* const* values, int64_t count, int64_t head_dim,
              float* weights, const float* added = nullptr) {
        const float scale = 1.0f / std::sqrt((float)head_dim);
        Floats highest = all(top);
        for (int64_t j = 0; j < count; j += LANES) {
            Floats products[LANES];
            clear(products);
            for (int i = 0; i < LANES; ++i) {
                const float* key = keys[std::min(j + i, count - 1)];
                for (int64_t d = 0; d < head_dim; d += LANES)
                    products[i] += load<Floats>(query + d) * load<Floats>(key + d);
            }
            transpose(products);
            Floats logits{};
            for (int i = 0; i < LANES; ++i) logits += products[i];
            logits = logits * scale;
            if (added) logits += load<Floats>(added + j);
            store(weights + j, logits);
            highest = larger(logits, highest);  // what follows the last key repeats it, or is -inf
        }
        const float before = top;
        top = bandrank::highest(highest);
        const float shrink = exp_of_negative(all(before - top))[0];
        Floats total{}, none{};
        for (int64_t j = 0; j < count; j += LANES) {
            Floats w = exp_of_negative(load<Floats>(weights + j) - all(top));
            w = lane_numbers() < (int32_t)(count - j) ? w : none;
            total += w;
            store(weights + j, w);
        }
        norm = norm * shrink + sum(total);
        for (int64_t d = 0; d < head_dim; d += LANES) {
            Floats weighted = load<Floats>(sums + d) * shrink;
            for (int64_t j = 0; j < count; ++j) weighted += weights[j] * load<Floats>(values[j] + d);
            store(sums + d, weighted);
        }
    }

    // Adds the softmax of the same row over other keys.
    void merge(const Softmax& other, int64_t head_dim) {
        const float both = std::max(top, other.top);
        const float ours = exp_of_negative(all(top - both))[0], theirs = exp_of_negative(all(other.top - both))[0];
        top = both;
        norm = norm * ours + other.norm * theirs;
        for (int64_t d = 0; d < head_dim; d += LANES)
            store(sums + d, load<Floats>(sums + d) * ours + load<Floats>(other.sums + d) * theirs);
    }

    void finish(int64_t head_dim, float* out) const {
        const float inverse = 1.0f / norm;
        for (int64_t d = 0; d < head_dim; d += LANES) store(out + d, load<Floats>(sums + d) * inverse);
    }
};

// Transposes the words of LANES rows of a head, which start at row(lane), so that each row has a lane, times `scale`: to
// (words, width).
template <class Word = OneFloat, class RowOf>
inline void to_lanes(RowOf row, int64_t head_dim, float* to, int64_t width, float scale = 1.0f) {
    for (int64_t d = 0, word = 0; d < head_dim; d += LANES * Word::COUNT, word += LANES) {
        Floats block[LANES];
        for (int lane = 0; lane < LANES; ++lane) block[lane] = Word::along(row(lane), d, head_dim, scale);
        transpose(block);
        for (int i = 0; i < LANES; ++i) store(to + (word + i) * width, block[i]);
    }
}

// Attention of GROUPS times LANES query rows from `first` on, one in each lane; lanes past the task's last row repeat it.
// A word of a key or a value is loaded once for all groups. keys, values: as `gather` leaves them.
template <class Word, int GROUPS>
inline void attend_lanes(Rows q, const Task& task, int64_t first, const float* keys, const float* values,
                         int64_t head_dim, Rows out, HeadBias bias, AttentionScratch& scratch) {
    constexpr int WIDE = GROUPS * LANES;
    constexpr int KEYS = GROUPS > 1 && REGISTERS < 32 ? MOST_TOGETHER / 2 : MOST_TOGETHER;
    constexpr int DIMENSIONS = std::min(KEYS, LANES);
    static_assert(LANES % DIMENSIONS == 0, "those of a block of values");
    const float scale = 1.0f / std::sqrt((float)head_dim);
    const int64_t shared = task.shared(), band = whole_words<Word>(shared), depth = words_of<Word>(head_dim);
    const int64_t lanes = std::min<int64_t>(WIDE, task.queries.end() - first);
    float *query = scratch.queries.data(), *weights = scratch.weights.data();

    for (int group = 0; group < GROUPS; ++group)
        to_lanes<Word>([&](int lane) { return q[first + std::min<int64_t>(group * LANES + lane, lanes - 1)]; }, head_dim,
                       query + group * LANES, WIDE, Word::ROUNDS ? 1.0f : scale);  // scaled, they would be rounded again
    const InBand seen(task, first, lanes, Word::COUNT);  // after the shared ones
    const int64_t end = band + seen.count, count = whole_words<Word>(end);
    auto place = [&](int64_t j) { return j < band ? j : j + seen.near; };

    Floats highest[GROUPS];
    for (Floats& each : highest) each = all(-INFINITY);
    for (int64_t j = 0; j < count; j += KEYS) {
        Floats logits[KEYS][GROUPS];
        clear(logits);
        const float* rows[KEYS];
        for (int i = 0; i < KEYS; ++i) rows[i] = keys + place(std::min(j + i, count - 1)) * depth;
        for (int64_t word = 0; word < depth; ++word) {
            Floats x[GROUPS];
            for (int group = 0; group < GROUPS; ++group) x[group] = load<Floats>(query + word * WIDE + group * LANES);
            for (int i = 0; i < KEYS; ++i)
                for (int group = 0; group < GROUPS; ++group)
                    logits[i][group] = Word::add_products(logits[i][group], x[group], rows[i] + word);
        }
#pragma GCC unroll 8  // all of them, or else the logits would be in memory
        for (int i = 0; i < KEYS; ++i)
#pragma GCC unroll 2
            for (int group = 0; group < GROUPS; ++group) {
                const int64_t key = j + i;
                if (key >= count) continue;
                Floats logit = logits[i][group];
                if (bias.of_zero)
                    logit += load<Floats>(bias.of(first, scratch.positions.data()[place(key)]) + group * LANES);
                if (key >= band) logit = seen.of_those_who_see(key - band, group, logit);
                if (key >= end || (shared <= key && key < band)) logit = all(-INFINITY);  // zeros that fill a word
                highest[group] = larger(logit, highest[group]);
                store(weights + key * WIDE + group * LANES, logit);
            }
    }
    // Weights take the place of logits: a word of them is no further on than the logits that it is made of.
    Floats inverse[GROUPS];
    for (int group = 0; group < GROUPS; ++group) {
        float *logits = weights + group * LANES, *to = logits;
        Floats norm{};
        for (int64_t j = 0; j < count; j += Word::COUNT, to += WIDE) {
            Floats beside[Word::COUNT];
            for (Floats& weight : beside) {
                weight = Word::weight(load<Floats>(logits) - highest[group], scale);
                norm += weight;
                logits += WIDE;
            }
            store(to, Word::beside(beside));
        }
        inverse[group] = 1.0f / norm;
    }
    for (int64_t d = 0; d < head_dim; d += LANES) {
        Floats blocks[GROUPS][LANES];
        for (int part = 0; part < LANES; part += DIMENSIONS) {
            Floats sums[DIMENSIONS][GROUPS];
            clear(sums);
            const float* weight = weights;
            for (int64_t j = 0; j < count; j += Word::COUNT, weight += WIDE) {
                Floats w[GROUPS];
                for (int group = 0; group < GROUPS; ++group) w[group] = load<Floats>(weight + group * LANES);
                const float* row = values + place(j) / Word::COUNT * head_dim + d + part;
                for (int i = 0; i < DIMENSIONS; ++i)
                    for (int group = 0; group < GROUPS; ++group)
                        sums[i][group] = Word::add_products(sums[i][group], w[group], row + i);
            }
            for (int i = 0; i < DIMENSIONS; ++i)
                for (int group = 0; group < GROUPS; ++group) blocks[group][part + i] = sums[i][group] * inverse[group];
        }
        for (int group = 0; group < GROUPS; ++group) {
            transpose(blocks[group]);
            for (int64_t lane = 0; lane < LANES && group * LANES + lane < lanes; ++lane)
                store((float*)out[first + group * LANES + lane] + d, blocks[group][lane]);
        }
    }
}

// Whether a task's query rows are computed in lanes, or else one by one.
inline bool in_lanes(const Task& task) { return task.queries.count >= FEW || task.band.count || task.window < 0; }

// Calls attend(task, first, wide, column) for the query rows in lanes of tasks, by the first columns of heads: two
// registers of rows at a time if `wide`, else one. Two do not pay in a narrow band, where a row sees few of the keys that
// its neighbours see.
template <class Attend>
inline void each_lanes(const Task* tasks, const Task* last, int64_t heads, int64_t head_dim, Attend&& attend) {
    for (int64_t column = 0; column < heads * head_dim; column += head_dim)
        for (const Task* task = tasks; task < last; ++task) {
            if (!in_lanes(*task)) continue;
            const bool narrow = task->band.count && task->window < 2 * LANES;
            for (int64_t first = task->queries.first, next; first < task->queries.end(); first = next) {
                const bool wide = !narrow && task->queries.end() - first > LANES;
                next = first + (wide ? 2 * LANES : LANES);
                attend(*task, first, wide, column);
            }
        }
}

// Copies the words of a task's keys and values to scratch: keys (rows, words), and values (rows / COUNT, head_dim), whose
// words hold a number of COUNT rows each. The rows of the runs of keys, and those of the band, are followed by zeros up to
// a whole word.
template <class Word>
inline void gather(Rows k, Rows v, int64_t head_dim, const Task& task, AttentionScratch& scratch) {
    static constexpr float zeros[MOST_NUMBERS] = {};
    const int64_t band = whole_words<Word>(task.shared()), rows = band + whole_words<Word>(task.band.count);
    float *key_words = scratch.keys.room(rows * words_of<Word>(head_dim));
    float *value_words = scratch.values.room(rows / Word::COUNT * head_dim);
    scratch.weights.room((rows + 1) * 2 * LANES);
    const float* beside[Word::COUNT];
    int64_t added = 0;
    auto add = [&](const float* key, const float* value) {
        for (int64_t d = 0; d < head_dim; d += LANES * Word::COUNT, key_words += LANES)
            store(key_words, Word::along(key, d, head_dim));
        beside[added++ % Word::COUNT] = value;
        if (added % Word::COUNT) return;
        for (int64_t d = 0; d < head_dim; d += LANES, value_words += LANES) {
            Floats numbers[Word::COUNT];
            for (int i = 0; i < Word::COUNT; ++i) numbers[i] = load<Floats>(beside[i] + d);
            store(value_words, Word::beside(numbers));
        }
    };
    for (const Run& run : task.keys)
        for (int64_t row = run.first; row < run.end(); ++row) add(k[row], v[row]);
    while (added < band) add(zeros, zeros);
    for (int64_t row = task.band.first; row < task.band.end(); ++row) add(k[row], v[row]);
    while (added < rows) add(zeros, zeros);
}

// Finds the addresses of the rows of a task's keys and values, and returns their number.
inline int64_t find_rows(Rows k, Rows v, const Task& task, AttentionScratch& scratch) {
    const int64_t total = task.total();
    const float **key = scratch.key_rows.room(total), **value = scratch.value_rows.room(total);
    scratch.weights.room(total + LANES);
    for (const Run& run : task.runs())
        for (int64_t row = run.first; row < run.end(); ++row) *key++ = k[row], *value++ = v[row];
    return total;
}

// Lets the query row of a task without a band meet its keys.
inline void meet(Rows q, Rows k, Rows v, int64_t head_dim, const Task& task, Softmax& softmax,
                 AttentionScratch& scratch) {
    if (const int64_t total = find_rows(k, v, task, scratch))
        softmax.meet(q[task.queries.first], scratch.key_rows.data(), scratch.value_rows.data(), total, head_dim,
                     scratch.weights.data());
}

// Copies the positions of a task's keys to scratch, one after the other.
inline void gather_positions(const int64_t* positions, const Task& task, AttentionScratch& scratch) {
    int64_t* to = scratch.positions.room(task.total());
    for (const Run& run : task.runs()) to = std::copy_n(positions + run.first, run.count, to);
}

// What is added to the logits of one query row, in scratch.
inline const float* added(HeadBias bias, int64_t row, int64_t total, AttentionScratch& scratch) {
    if (!bias.of_zero) return nullptr;
    float* to = scratch.added.room(total + LANES);
    for (int64_t j = 0; j < total; ++j) to[j] = *bias.of(row, scratch.positions.data()[j]);
    std::fill_n(to + total, LANES, -INFINITY);
    return to;
}

// Attention of the rows in lanes of tasks with the same keys, for the heads that share these keys.
template <class Word>
inline void attend_by_lanes(Rows q, Rows k, Rows v, int64_t heads, int64_t head_dim, const Task* tasks, const Task* last,
                            Rows out, AttentionScratch& scratch, HeadBias bias) {
    gather<Word>(k, v, head_dim, *tasks, scratch);
    scratch.queries.room(MOST_NUMBERS * 2 * LANES);
    each_lanes(tasks, last, heads, head_dim, [&](const Task& task, int64_t first, bool wide, int64_t column) {
        (wide ? attend_lanes<Word, 2> : attend_lanes<Word, 1>)(q + column, task, first, scratch.keys.data(),
                                                               scratch.values.data(), head_dim, out + column, bias, scratch);
    });
}

#if defined(__AMX_BF16__)
// The same with tiles, without a bias.
inline void attend_by_tiles(Rows q, Rows k, Rows v, int64_t heads, int64_t head_dim, const Task* tasks, const Task* last,
                            Rows out, AttentionScratch& scratch, HeadBias) {
    const Tiles tiles;
    const TiledKeys to = TiledKeys::of(k, v, *tasks, head_dim, scratch);
    each_lanes(tasks, last, heads, head_dim, [&](const Task& task, int64_t first, bool wide, int64_t column) {
        (wide ? attend_tiles<true> : attend_tiles<false>)(q + column, task, first, to, head_dim, out + column, scratch);
    });
}
constexpr auto attend_without_bias = attend_by_tiles;
#elif defined(__AVX512BF16__)
constexpr auto attend_without_bias = attend_by_lanes<TwoBf16>;
#else
constexpr auto attend_without_bias = attend_by_lanes<OneFloat>;
#endif

// The same for the rows that are not in lanes.
inline void attend_one_by_one(Rows q, Rows k, Rows v, int64_t heads, int64_t head_dim, const Task* tasks, const Task* last,
                              Rows out, AttentionScratch& scratch, HeadBias bias) {
    const int64_t total = find_rows(k, v, *tasks, scratch);
    for (const Task* task = tasks; task < last; ++task)
        for (int64_t row = task->queries.first; row < task->queries.end() && !in_lanes(*task); ++row)
            for (int64_t column = 0; column < heads * head_dim; column += head_dim) {
                float sums[MOST_NUMBERS];
                Softmax softmax(sums, head_dim);
                softmax.meet((q + column)[row], scratch.key_rows.data(), scratch.value_rows.data(), total, head_dim,
                             scratch.weights.data(), added(bias, row, total, scratch));
                softmax.finish(head_dim, (float*)(out + column)[row]);
            }
}

// Attention of tasks with the same keys, for the heads that share these keys, which are adjacent in q and out. With a
// bias, the keys' positions are in scratch. head_dim: a multiple of LANES, at most MOST_NUMBERS.
inline void attend(Rows q, Rows k, Rows v, int64_t heads, int64_t head_dim, const Task* tasks, const Task* last, Rows out,
                   AttentionScratch& scratch, HeadBias bias = {}) {
    auto side_by_side = bias.of_zero ? attend_by_lanes<OneFloat> : attend_without_bias;
    if (std::any_of(tasks, last, in_lanes)) side_by_side(q, k, v, heads, head_dim, tasks, last, out, scratch, bias);
    if (!std::all_of(tasks, last, in_lanes)) attend_one_by_one(q, k, v, heads, head_dim, tasks, last, out, scratch, bias);
}

// out (rows, heads, head_dim): the attention of tasks, for all heads; equally many share each head of keys and values.
// Consecutive tasks with the same keys fetch them once. biases: or null.
inline void attend_tasks(Rows q, Rows k, Rows v, int64_t heads, int64_t kv_heads, int64_t head_dim, const Task* tasks,
                         const Task* last, float* out, AttentionScratch& scratch, const Biases* biases = nullptr) {
    const int64_t sharing = heads / kv_heads;
    for (const Task *task = tasks, *next; task < last; task = next) {
        next = task + 1;
        while (next < last && next->same_keys(*task)) ++next;
        if (biases) gather_positions(biases->positions, *task, scratch);
        for (int64_t head = 0; head < kv_heads; ++head) {
            const int64_t column = head * head_dim, first = column * sharing;
            attend(q + first, k + column, v + column, sharing, head_dim, task, next, {out + first, heads * head_dim}, scratch,
                   biases ? biases->head(head) : HeadBias{});
        }
    }
}

}  // namespace bandrank
