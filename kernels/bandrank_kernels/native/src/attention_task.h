// Tasks of attention: a few query rows, and the runs of rows that they see.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include "buffer.h"
#include "simd.h"

namespace bandrank {

// A task's query rows attend to all rows of the runs in `keys`, and to those rows of the run `band` that are at most
// `window` away. window: negative without a band, for rows that are computed alike however few of them are in the task.
// causal: whether they see no row of the band after themselves.
struct Run {
    int64_t first, count;
    int64_t end() const { return first + count; }
};
struct Task {
    Run queries, keys[3], band;
    int64_t window, causal = 0;

    std::array<Run, 4> runs() const { return {keys[0], keys[1], keys[2], band}; }
    int64_t shared() const { return keys[0].count + keys[1].count + keys[2].count; }
    int64_t total() const { return shared() + band.count; }
    bool same_keys(const Task& other) const {
        return !std::memcmp(keys, other.keys, sizeof keys) && !std::memcmp(&band, &other.band, sizeof band);
    }
};
static_assert(sizeof(Task) == 12 * sizeof(int64_t), "a row of the table of tasks");

// Rows of one head, `stride` numbers apart: those from `begin` on, and those before it, in another place.
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

// What a head adds to a logit for the distance of its rows, the query row's position less the key row's. of_zero: the bias
// of distance 0, or null if the head adds nothing. Enough numbers follow the last bias for whole registers to be read.
struct HeadBias {
    const float* of_zero = nullptr;
    const int64_t* positions = nullptr;  // of all rows; consecutive in a run
    const float* of(int64_t query_row, int64_t key_position) const {
        return of_zero + (positions[query_row] - key_position);
    }
};
// The biases of all heads. table: (heads, stride); a head's first is that of distance -reach.
struct Biases {
    const float* table;
    int64_t stride, reach;
    const int64_t* positions;
    HeadBias head(int64_t index) const { return {table + index * stride + reach, positions}; }
};

// The numbers of the lanes.
inline Ints lane_numbers() {
    Ints numbers;
    for (int lane = 0; lane < LANES; ++lane) numbers[lane] = lane;
    return numbers;
}

// The rows of a task's band that any of `lanes` query rows from `first` on sees. Each query row has a lane. together: how many
// rows of the band have their words together, of which none is taken without those before it.
struct InBand {
    int64_t near, count;  // the first of them, in the band, and how many
    int64_t offset;       // of the first query row, in the band
    int32_t window, ahead;    // how far each sees before and after itself

    InBand(const Task& task, int64_t first, int64_t lanes, int64_t together = 1)
        : offset(first - task.band.first), window((int32_t)task.window), ahead(task.causal ? 0 : window) {
        near = std::max<int64_t>(0, offset - task.window) / together * together;
        count = std::max<int64_t>(0, std::min(task.band.count, offset + lanes + ahead) - near);
    }

    // The logits of the index-th of them, -inf in the lanes of rows that do not see it. group: of LANES query rows.
    Floats of_those_who_see(int64_t index, int group, Floats logits) const {
        const Ints apart = lane_numbers() - (int32_t)(near + index - offset - group * LANES);
        return (apart > window) | (apart < -ahead) ? all(-INFINITY) : logits;
    }
};

struct AttentionScratch {
    Buffer<float> keys, values, queries, weights, added;
    Buffer<const float*> key_rows, value_rows;
    Buffer<int64_t> positions;
    Buffer<uint16_t> bf16;
};

constexpr int MOST_NUMBERS = 512;  // of a head

}  // namespace bandrank
