// Attention of many rows to a query that all of them see, and of each to the few rows of its own candidate (Yang et al.
// 2023, arXiv 2210.05261, section 3.1.1).
#pragma once
#include "attention.h"

namespace bandrank {

// The keys and values of one head of the query, (count, head_dim) each, with a count of at least one.
struct SharedKeys {
    const float *keys, *values;
    int64_t count;
};

// Attention of one register of rows, one in each lane, from `first` on; lanes past the last row repeat it. Every lane is
// computed by itself. q, k, v: of one head.  own: how many rows a candidate has, which are consecutive; 0 for rows that
// see only the query, which need no k and v.
inline void attend_shared_lanes(Rows q, Rows k, Rows v, int64_t first, int64_t last, int64_t own, SharedKeys shared,
                                int64_t head_dim, Rows out, AttentionScratch& scratch) {
    const float scale = 1.0f / std::sqrt((float)head_dim);
    const int64_t lanes = std::min<int64_t>(LANES, last - first), count = shared.count + own;
    float *query = scratch.queries.room(MOST_NUMBERS * LANES), *other = scratch.keys.room(MOST_NUMBERS * LANES);
    float* weights = scratch.weights.room(count * LANES);
    auto lane_row = [&](int lane) { return first + std::min<int64_t>(lane, lanes - 1); };
    auto own_row = [&](int lane, int64_t j) { return lane_row(lane) / own * own + j; };

    to_lanes([&](int lane) { return q[lane_row(lane)]; }, head_dim, query, LANES, scale);
    Floats top = all(-INFINITY);
    auto keep = [&](int64_t j, Floats logit) {
        top = larger(logit, top);
        store(weights + j * LANES, logit);
    };
    for (int64_t j = 0; j < shared.count; j += MOST_TOGETHER) {
        Floats logits[MOST_TOGETHER];
        clear(logits);
        const float* rows[MOST_TOGETHER];
        for (int i = 0; i < MOST_TOGETHER; ++i) rows[i] = shared.keys + std::min(j + i, shared.count - 1) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) {
            const Floats x = load<Floats>(query + d * LANES);
            for (int i = 0; i < MOST_TOGETHER; ++i) logits[i] += x * rows[i][d];
        }
        for (int i = 0; i < MOST_TOGETHER && j + i < shared.count; ++i) keep(j + i, logits[i]);
    }
    for (int64_t j = 0; j < own; ++j) {
        to_lanes([&](int lane) { return k[own_row(lane, j)]; }, head_dim, other, LANES);
        Floats logit{};
        for (int64_t d = 0; d < head_dim; ++d)
            logit += load<Floats>(query + d * LANES) * load<Floats>(other + d * LANES);
        keep(shared.count + j, logit);
    }
    Floats norm{};
    for (int64_t j = 0; j < count; ++j) {
        Floats weight = exp_of_negative(load<Floats>(weights + j * LANES) - top);
        norm += weight;
        store(weights + j * LANES, weight);
    }
    // The sums of weighted values overwrite the queries.
    constexpr int DIMENSIONS = std::min(MOST_TOGETHER, LANES);
    for (int64_t d = 0; d < head_dim; d += DIMENSIONS) {
        Floats sums[DIMENSIONS];
        clear(sums);
        for (int64_t j = 0; j < shared.count; ++j) {
            const Floats weight = load<Floats>(weights + j * LANES);
            const float* row = shared.values + j * head_dim + d;
            for (int i = 0; i < DIMENSIONS; ++i) sums[i] += weight * row[i];
        }
        for (int i = 0; i < DIMENSIONS; ++i) store(query + (d + i) * LANES, sums[i]);
    }
    for (int64_t j = 0; j < own; ++j) {
        to_lanes([&](int lane) { return v[own_row(lane, j)]; }, head_dim, other, LANES);
        const Floats weight = load<Floats>(weights + (shared.count + j) * LANES);
        for (int64_t d = 0; d < head_dim; ++d)
            store(query + d * LANES, load<Floats>(query + d * LANES) + weight * load<Floats>(other + d * LANES));
    }
    const Floats inverse = 1.0f / norm;
    for (int64_t d = 0; d < head_dim; d += LANES) {
        Floats block[LANES];
        for (int i = 0; i < LANES; ++i) block[i] = load<Floats>(query + (d + i) * LANES) * inverse;
        transpose(block);
        for (int64_t lane = 0; lane < lanes; ++lane) store((float*)out[first + lane] + d, block[lane]);
    }
}

// out (rows, heads, head_dim). rows: `stride` numbers apart, the queries of all heads followed, if there are own rows to
// see, by their keys and values; the `own` rows of a candidate are in the same call.  keys, values: (heads, count,
// head_dim) of the query, with a count of at least one.
inline void attend_shared(const float* rows, int64_t stride, int64_t num_rows, int64_t own, const float* keys,
                          const float* values, int64_t count, int64_t heads, int64_t head_dim, float* out,
                          AttentionScratch& scratch) {
    const int64_t size = heads * head_dim;
    const Rows q{rows, stride}, k = q + size, v = k + size;
    for (int64_t head = 0; head < heads; ++head) {
        const int64_t column = head * head_dim, start = head * count * head_dim;
        const SharedKeys shared{keys + start, values + start, count};
        for (int64_t first = 0; first < num_rows; first += LANES)
            attend_shared_lanes(q + column, k + column, v + column, first, num_rows, own, shared, head_dim,
                                {out + column, size}, scratch);
    }
}

}  // namespace bandrank
