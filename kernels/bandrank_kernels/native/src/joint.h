// Layers for sequences in which every row sees all.
#pragma once
#include "layers.h"

namespace bandrank {

// A sequence whose rows are in several runs, such as those of its [CLS], its query and its candidate.
struct Joint {
    Run runs[3];
    int64_t count() const { return runs[0].count + runs[1].count + runs[2].count; }
};
static_assert(sizeof(Joint) == 6 * sizeof(int64_t), "a row of the table of sequences");

// Calls visit(first, next, rows, count) for runs of sequences, of about a chunk of rows each, which it copies together to
// `rows`, (count, size), in scratch.
template <class Visit>
inline void each_chunk(const float* hidden, int64_t size, const Joint* sequences, const Joint* last, Visit visit) {
    for (const Joint *first = sequences, *next; first < last; first = next) {
        int64_t count = first->count();
        for (next = first + 1; next < last && count + next->count() <= SequenceLayer::CHUNK; ++next)
            count += next->count();
        float *rows = scratch.gathered.room(count * size), *to = rows;
        scratch.results.room(count * size);
        for (const Joint* each = first; each < next; ++each)
            for (const Run& run : each->runs) to = std::copy_n(hidden + run.first * size, run.count * size, to);
        visit(first, next, rows, count);
    }
    scratch.gathered.clear_if_large();
    scratch.results.clear_if_large();
}

// A layer for sequences in which every row sees all: their rows are copied together, a chunk at a time.
inline void joint_sequences(const float* hidden, const Weights& qkv, const PostNorm& rest, int64_t heads,
                            int64_t head_dim, const Joint* sequences, const Joint* last, float* out) {
    const int64_t size = heads * head_dim;
    each_chunk(hidden, size, sequences, last, [&](const Joint* first, const Joint* next, const float* rows, int64_t) {
        scratch.pieces.clear();
        int64_t row = 0;
        for (const Joint* each = first; each < next; row += each++->count())
            scratch.pieces.push_back({{row, each->count()}, {0, 0}, -1, {row, each->count()}});
        const Piece* pieces = scratch.pieces.data();
        const float* from = scratch.results.data();
        const SequenceLayer layer{rows, nullptr, &qkv, &rest, heads, head_dim, {-1, 0, 0, 0, 0}, nullptr,
                                  scratch.results.data()};
        layer(pieces, pieces + scratch.pieces.size());
        for (const Joint* each = first; each < next; ++each)
            for (const Run& run : each->runs) {
                std::copy_n(from, run.count * size, out + run.first * size);
                from += run.count * size;
            }
    });
}

// attended (sequences, size): the attention of the first row of each sequence, its [CLS], over all of its rows.
inline void joint_cls(const float* hidden, const Weights& qkv, int64_t heads, int64_t head_dim, const Joint* sequences,
                      const Joint* last, float* attended) {
    const int64_t size = heads * head_dim;
    each_chunk(hidden, size, sequences, last, [&](const Joint* first, const Joint* next, const float* rows, int64_t count) {
        int64_t row = 0;
        float *given = scratch.qkv.room(count * 3 * size), *results = scratch.results.data();
        project_keys(rows, count, qkv, given);
        const Weights queries = qkv.part(0, size);
        const Rows q{given, 3 * size};
        for (const Joint* each = first; each < next; row += each++->count()) {
            linear(rows + row * size, size, 1, queries, false, given + row * 3 * size);
            const Task task{{row, 1}, {{row, each->count()}}, {}, -1};
            attend_tasks(q, q + size, q + 2 * size, heads, heads, head_dim, &task, &task + 1, results, scratch.attention);
            std::copy_n(results + row * size, size, attended + (each - sequences) * size);
        }
    });
    scratch.qkv.clear_if_large();
}

}  // namespace bandrank
