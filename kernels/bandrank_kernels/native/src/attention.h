// Attention of a few rows over a few runs of rows, with one softmax (Schlatt et al. 2024, section 3.2).
#pragma once
#include <algorithm>
#include <cmath>

#include "buffer.h"
#include "simd.h"

namespace bandrank {

// Query rows first .. first + count - 1 attend to all rows of the runs in `keys`, and to those rows of the last run,
// `band`, that are at most `window` away. window: negative without a band, for rows that are computed alike however few
// of them are in the task.
struct Run {
    int64_t first, count;
    int64_t end() const { return first + count; }
};
struct Task {
    Run queries, keys[3], band;
    int64_t window;

    bool same_keys(const Task& other) const {
        return !std::memcmp(keys, other.keys, sizeof keys) && !std::memcmp(&band, &other.band, sizeof band);
    }
};
static_assert(sizeof(Task) == 11 * sizeof(int64_t), "a row of the table of tasks");

// Rows of one head, `stride` numbers apart: those from `begin` on, and the ones before in another place.
struct Rows {
    const float* from_begin;
    int64_t stride, begin = 0;
    const float* from_zero = nullptr;
    const float* operator[](int64_t row) const {
        return row < begin ? from_zero + row * stride : from_begin + (row - begin) * stride;
    }
    Rows operator+(int64_t column) const {
        return {from_begin + column, stride, begin, from_zero ? from_zero + column : nullptr};
    }
};

// What a head adds to the logit of two rows for their distance, the query row's position less the key row's. of_zero:
// what it adds for none; null for a head that adds nothing. Behind the last are so many more that lanes may be read.
struct HeadBias {
    const float* of_zero = nullptr;
    const int64_t* positions = nullptr;  // of all rows; those of a run follow each other
    const float* of(int64_t query_row, int64_t key_position) const {
        return of_zero + (positions[query_row] - key_position);
    }
};
// Those of all heads. table: (heads, stride); the first of a head is that of distance -reach.
struct Biases {
    const float* table;
    int64_t stride, reach;
    const int64_t* positions;
    HeadBias head(int64_t index) const { return {table + index * stride + reach, positions}; }
};

struct AttentionScratch {
    Buffer<float> keys, values, queries, weights, added;
    Buffer<int64_t> positions;
};

constexpr int FEW = 4;           // fewer query rows are computed one by one, with keys in the lanes
constexpr int MOST_NUMBERS = 256;  // of a head
constexpr int MOST_TOGETHER = 8;  // keys whose products run side by side, and dimensions whose sums do

inline void gather(Rows from, const Task& task, int64_t head_dim, float* to) {
    for (const Run& run : {task.keys[0], task.keys[1], task.keys[2], task.band})
        for (int64_t row = run.first; row < run.end(); ++row, to += head_dim)
            for (int64_t d = 0; d < head_dim; d += LANES) store(to + d, load<Floats>(from[row] + d));
}

// The softmax of one query row over the keys that it has met: their largest logit, the sum of exp(logit - largest), and
// the sum of the values with these weights, `head_dim` numbers.
struct Softmax {
    float top, norm;
    float* sums;

    Softmax(float* sums, int64_t head_dim) : top(-INFINITY), norm(0.0f), sums(sums) {
        std::fill(sums, sums + head_dim, 0.0f);
    }
    Softmax(float* sums, float top, float norm) : top(top), norm(norm), sums(sums) {}

    // keys, values: (count, head_dim), at least one.  weights: room for `count` and a register.  added: to the logits, as
    // many, with -inf behind the last; or null.
    void meet(const float* query, const float* keys, const float* values, int64_t count, int64_t head_dim,
              float* weights, const float* added = nullptr) {
        const float scale = 1.0f / std::sqrt((float)head_dim);
        Floats highest = all(top);
        for (int64_t j = 0; j < count; j += LANES) {
            Floats products[LANES];
            clear(products);
            for (int i = 0; i < LANES; ++i) {
                const float* key = keys + std::min(j + i, count - 1) * head_dim;
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
            for (int i = 0; i < LANES; ++i)
                if (j + i >= count) w[i] = none[i];
            total += w;
            store(weights + j, w);
        }
        norm = norm * shrink + sum(total);
        for (int64_t d = 0; d < head_dim; d += LANES) {
            Floats weighted = load<Floats>(sums + d) * shrink;
            for (int64_t j = 0; j < count; ++j) weighted += weights[j] * load<Floats>(values + j * head_dim + d);
            store(sums + d, weighted);
        }
    }

    // Meets what another has met.
    void meet(const Softmax& other, int64_t head_dim) {
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

// Brings LANES rows of a head, whose starts are row(lane), to where each has a lane, times `scale`: to (head_dim, width).
template <class RowOf>
inline void turn(RowOf row, int64_t head_dim, float* to, int64_t width, float scale = 1.0f) {
    for (int64_t d = 0; d < head_dim; d += LANES) {
        Floats block[LANES];
        for (int lane = 0; lane < LANES; ++lane) block[lane] = load<Floats>(row(lane) + d) * scale;
        transpose(block);
        for (int i = 0; i < LANES; ++i) store(to + (d + i) * width, block[i]);
    }
}

// GROUPS times LANES query rows, one in each lane, from the first that is given on; lanes behind the task's last row repeat
// it. A number of a key or a value is loaded once for all groups.
template <int GROUPS>
inline void attend_lanes(Rows q, const Task& task, int64_t first, const float* keys, const float* values,
                         int64_t head_dim, Rows out, HeadBias bias, AttentionScratch& scratch) {
    constexpr int WIDE = GROUPS * LANES;
    constexpr int KEYS = GROUPS > 1 && REGISTERS < 32 ? MOST_TOGETHER / 2 : MOST_TOGETHER;
    constexpr int DIMENSIONS = std::min(KEYS, LANES);
    static_assert(LANES % DIMENSIONS == 0, "those of a block of values");
    const float scale = 1.0f / std::sqrt((float)head_dim);
    const int64_t shared = task.keys[0].count + task.keys[1].count + task.keys[2].count;
    const int64_t lanes = std::min<int64_t>(WIDE, task.queries.end() - first);
    float *query = scratch.queries.data(), *weights = scratch.weights.data();
    Ints lane_row;
    for (int lane = 0; lane < LANES; ++lane) lane_row[lane] = lane;

    for (int group = 0; group < GROUPS; ++group)
        turn([&](int lane) { return q[first + std::min<int64_t>(group * LANES + lane, lanes - 1)]; }, head_dim,
             query + group * LANES, WIDE, scale);
    // The keys of the band that any lane sees: behind the shared ones, from the one with index `near`.
    const int64_t offset = first - task.band.first;
    const int64_t near = std::max<int64_t>(0, offset - task.window);
    const int64_t far = std::min(task.band.count, offset + lanes + task.window);
    const int64_t count = shared + std::max<int64_t>(0, far - near);
    auto place = [&](int64_t j) { return j < shared ? j : j + near; };

    Floats highest[GROUPS];
    for (Floats& each : highest) each = all(-INFINITY);
    for (int64_t j = 0; j < count; j += KEYS) {
        Floats logits[KEYS][GROUPS];
        clear(logits);
        const float* rows[KEYS];
        for (int i = 0; i < KEYS; ++i) rows[i] = keys + place(std::min(j + i, count - 1)) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) {
            Floats x[GROUPS];
            for (int group = 0; group < GROUPS; ++group) x[group] = load<Floats>(query + d * WIDE + group * LANES);
            for (int i = 0; i < KEYS; ++i)
                for (int group = 0; group < GROUPS; ++group) logits[i][group] += x[group] * rows[i][d];
        }
        for (int i = 0; i < KEYS && j + i < count; ++i)
            for (int group = 0; group < GROUPS; ++group) {
                Floats logit = logits[i][group];
                if (bias.of_zero)
                    logit += load<Floats>(bias.of(first, scratch.positions.data()[place(j + i)]) + group * LANES);
                if (j + i >= shared) {
                    Ints apart = lane_row - (int32_t)(place(j + i) - shared - offset - group * LANES);
                    Ints outside = (apart > (int32_t)task.window) | (apart < -(int32_t)task.window);
                    logit = outside ? all(-INFINITY) : logit;
                }
                highest[group] = larger(logit, highest[group]);
                store(weights + (j + i) * WIDE + group * LANES, logit);
            }
    }
    Floats inverse[GROUPS];
    for (int group = 0; group < GROUPS; ++group) {
        Floats norm{};
        for (int64_t j = 0; j < count; ++j) {
            float* weight = weights + j * WIDE + group * LANES;
            Floats w = exp_of_negative(load<Floats>(weight) - highest[group]);
            norm += w;
            store(weight, w);
        }
        inverse[group] = 1.0f / norm;
    }
    for (int64_t d = 0; d < head_dim; d += LANES) {
        Floats blocks[GROUPS][LANES];
        for (int part = 0; part < LANES; part += DIMENSIONS) {
            Floats sums[DIMENSIONS][GROUPS];
            clear(sums);
            for (int64_t j = 0; j < count; ++j) {
                Floats w[GROUPS];
                for (int group = 0; group < GROUPS; ++group) w[group] = load<Floats>(weights + j * WIDE + group * LANES);
                const float* row = values + place(j) * head_dim + d + part;
                for (int i = 0; i < DIMENSIONS; ++i)
                    for (int group = 0; group < GROUPS; ++group) sums[i][group] += w[group] * row[i];
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

// All query rows of a task, as many side by side as pay: in a narrow band each row sees few of the keys that its
// neighbours see.
inline void attend_rows(Rows q, const Task& task, const float* keys, const float* values, int64_t head_dim, Rows out,
                        HeadBias bias, AttentionScratch& scratch) {
    scratch.queries.room(MOST_NUMBERS * 2 * LANES);
    const bool narrow = task.band.count && task.window < 2 * LANES;
    for (int64_t first = task.queries.first, next; first < task.queries.end(); first = next) {
        const bool wide = !narrow && task.queries.end() - first > LANES;
        next = first + (wide ? 2 * LANES : LANES);
        (wide ? attend_lanes<2> : attend_lanes<1>)(q, task, first, keys, values, head_dim, out, bias, scratch);
    }
}

// Copies the keys and values of a task to where they are one behind the other, and returns their number.
inline int64_t gather(Rows k, Rows v, int64_t head_dim, const Task& task, AttentionScratch& scratch) {
    const int64_t total = task.keys[0].count + task.keys[1].count + task.keys[2].count + task.band.count;
    scratch.keys.room(total * head_dim);
    scratch.values.room(total * head_dim);
    scratch.weights.room((total + 1) * 2 * LANES);
    gather(k, task, head_dim, scratch.keys.data());
    gather(v, task, head_dim, scratch.values.data());
    return total;
}

// Lets the query row of a task without a band meet its keys.
inline void meet(Rows q, Rows k, Rows v, int64_t head_dim, const Task& task, Softmax& softmax,
                 AttentionScratch& scratch) {
    if (const int64_t total = gather(k, v, head_dim, task, scratch))
        softmax.meet(q[task.queries.first], scratch.keys.data(), scratch.values.data(), total, head_dim,
                     scratch.weights.data());
}

// The positions of a task's keys, one behind the other.
inline void gather_positions(const int64_t* positions, const Task& task, AttentionScratch& scratch) {
    int64_t* to =
        scratch.positions.room(task.keys[0].count + task.keys[1].count + task.keys[2].count + task.band.count);
    for (const Run& run : {task.keys[0], task.keys[1], task.keys[2], task.band})
        to = std::copy_n(positions + run.first, run.count, to);
}

// What is added to the logits of one query row, in scratch.
inline const float* added(HeadBias bias, int64_t row, int64_t total, AttentionScratch& scratch) {
    if (!bias.of_zero) return nullptr;
    float* to = scratch.added.room(total + LANES);
    for (int64_t j = 0; j < total; ++j) to[j] = *bias.of(row, scratch.positions.data()[j]);
    std::fill_n(to + total, LANES, -INFINITY);
    return to;
}

// The rows of tasks with the same keys, for one head; with a bias, their positions are in scratch. head_dim: a multiple of
// LANES, at most MOST_NUMBERS.
inline void attend(Rows q, Rows k, Rows v, int64_t head_dim, const Task* tasks, const Task* last, Rows out,
                   AttentionScratch& scratch, HeadBias bias = {}) {
    const int64_t total = gather(k, v, head_dim, *tasks, scratch);
    const float *keys = scratch.keys.data(), *values = scratch.values.data();
    for (const Task* task = tasks; task < last; ++task) {
        if (task->queries.count >= FEW || task->band.count || task->window < 0) {
            attend_rows(q, *task, keys, values, head_dim, out, bias, scratch);
            continue;
        }
        for (int64_t row = task->queries.first; row < task->queries.end(); ++row) {
            float sums[MOST_NUMBERS];
            Softmax softmax(sums, head_dim);
            softmax.meet(q[row], keys, values, total, head_dim, scratch.weights.data(),
                         added(bias, row, total, scratch));
            softmax.finish(head_dim, (float*)out[row]);
        }
    }
}

// out (rows, heads, head_dim): the rows of tasks, for all heads. q, k, v: `stride` numbers from row to row. The keys of
// tasks that are one behind the other and have the same are fetched once. biases: or null.
inline void attend_tasks(const float* q, const float* k, const float* v, int64_t stride, int64_t heads,
                         int64_t head_dim, const Task* tasks, const Task* last, float* out, AttentionScratch& scratch,
                         const Biases* biases = nullptr) {
    for (const Task *task = tasks, *next; task < last; task = next) {
        next = task + 1;
        while (next < last && next->same_keys(*task)) ++next;
        if (biases) gather_positions(biases->positions, *task, scratch);
        for (int64_t head = 0; head < heads; ++head) {
            const int64_t column = head * head_dim;
            attend({q + column, stride}, {k + column, stride}, {v + column, stride}, head_dim, task, next,
                   {out + column, heads * head_dim}, scratch, biases ? biases->head(head) : HeadBias{});
        }
    }
}

}  // namespace bandrank
