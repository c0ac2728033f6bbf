// Layers of an encoder one after the other, on one thread.
#pragma once
#include "joint.h"

namespace bandrank {

struct Layer {
    const Weights* qkv;
    const PostNorm* rest;
};

// The rows of a batch, those of [CLS] and of queries first, and who sees whom.
struct Sequences {
    int64_t heads, head_dim, rows, before;
    int64_t far;  // whether the queries, keys and values of all rows are computed before any attention
    Pattern pattern;
    const Task* queries;  // what rows of queries see
    int64_t num_queries;
    const Piece* pieces;
    int64_t num_pieces;
    const Joint* joint;  // or null; else every row sees all others of its sequence, and the five fields before are unused
    int64_t num_joint;

    int64_t size() const { return heads * head_dim; }
};

// to (rows, size): a layer's output. first: if not negative, only the output of that many [CLS] rows is wanted, and `to`
// has no others.
inline void layer_of_shared(const Sequences& s, const Layer& layer, const float* hidden, int64_t first, float* to) {
    const int64_t size = s.size(), projected = s.far ? s.rows : s.before;
    float *given = scratch.given.room(projected * 3 * size), *attended = scratch.before.room(s.before * size);
    float* met = scratch.met.room(s.num_pieces * (size + 2 * s.heads));
    const bool all = first < 0;
    linear(hidden, size, projected, *layer.qkv, false, given);
    const Rows q{given, 3 * size};
    if (all)
        attend_tasks(q, q + size, q + 2 * size, s.heads, s.heads, s.head_dim, s.queries, s.queries + s.num_queries, attended,
                     scratch.attention);
    const Weights* qkv = s.far ? nullptr : layer.qkv;
    const PostNorm* rest = all ? layer.rest : nullptr;
    const SequenceLayer sequences{hidden, given, qkv, rest, s.heads, s.head_dim, s.pattern, met, to};
    sequences(s.pieces, s.pieces + s.num_pieces);
    finish_cls(s.pieces, s.num_pieces, met, s.heads, s.head_dim, attended);
    post_norm(attended, hidden, all ? s.before : first, *layer.rest, to);
}

// The same where every row sees all of its sequence.
inline void layer_of_joint(const Sequences& s, const Layer& layer, const float* hidden, int64_t first, float* to) {
    const Joint* last = s.joint + s.num_joint;
    if (first < 0) return joint_sequences(hidden, *layer.qkv, *layer.rest, s.heads, s.head_dim, s.joint, last, to);
    float* attended = scratch.before.room(s.num_joint * s.size());
    joint_cls(hidden, *layer.qkv, s.heads, s.head_dim, s.joint, last, attended);
    post_norm(attended, hidden, first, *layer.rest, to);
}

// Layers one after the other, from `hidden` to states[0], from there to states[1], and back; each (rows, size). out: if
// not null, the last layer writes the output of the `first` rows there instead.
inline void stack(const Sequences& s, const Layer* layers, int64_t count, const float* hidden, float* const states[2],
                  int64_t first, float* out) {
    for (int64_t i = 0; i < count; ++i) {
        const bool cls_only = out && i + 1 == count;
        float* to = cls_only ? out : states[i % 2];
        (s.joint ? layer_of_joint : layer_of_shared)(s, layers[i], hidden, cls_only ? first : -1, to);
        hidden = to;
    }
    scratch.given.clear_if_large();
    scratch.before.clear_if_large();
    scratch.met.clear_if_large();
}

}  // namespace bandrank
