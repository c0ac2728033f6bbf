// The functions that Python calls. Each runs on the thread that calls it, and any number of threads may call them.
#include "awake.h"
#include "shared_query.h"
#include "stack.h"

using namespace bandrank;

namespace {

constexpr int NO_MEMORY = 1, NO_SUCH_ROW = 2;

// Returns 0, or NO_MEMORY if it ran out: an exception that leaves a C function ends the process.
template <class Call>
int done(Call call) {
    try {
        call();
        return 0;
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Whether this process may run the functions; to be called first.
int bandrank_start() { return ask_for_tiles(); }

int bandrank_panel() { return PANEL; }
int bandrank_depth() { return DEPTH; }
int bandrank_bf16_depth() { return BF16_STEP; }
int bandrank_block_rows() { return CHAIN_ROWS; }
int bandrank_has_bf16() { return HAS_BF16; }
// Whether threads may run at idle priority, as that of `bandrank_keep_awake` does.
int bandrank_has_idle_priority() { return has_idle_priority(); }
// How many numbers past the last bias of a head may be read.
int bandrank_bias_room() { return 2 * LANES; }

// All others return 0, or the number of an error, and what they wrote is then of no use.

int bandrank_pack(const int8_t* weight, int64_t outputs, int64_t given, int64_t bytes, int8_t* panels, int32_t* sums) {
    return done([=] { pack(weight, outputs, given, bytes, panels, sums); });
}

int bandrank_linear(const float* x, int64_t stride, int64_t rows, const Weights* weights, int gelu_follows, float* out) {
    return done([=] { linear(x, stride, rows, *weights, gelu_follows, out); });
}

int bandrank_post_norm(const float* attended, const float* hidden, int64_t rows, const PostNorm* block, float* out) {
    return done([=] { post_norm(attended, hidden, rows, *block, out); });
}

int bandrank_pre_norm(const float* attended, const float* hidden, int64_t rows, const PreNorm* block, float* out) {
    return done([=] { pre_norm(attended, hidden, rows, *block, out); });
}

int bandrank_project(const float* x, int64_t rows, const Weights* qkv, const Norm* norm, const Turn* turn, float* out) {
    return done([=] { project(x, rows, *qkv, *norm, *turn, out); });
}

// A layer for some pieces of sequences; see SequenceLayer.
int bandrank_sequences(const float* hidden, const float* given, const Weights* qkv, const PostNorm* rest,
                       int64_t heads, int64_t head_dim, const Pattern* pattern, const Piece* pieces, int64_t count,
                       float* met, float* out) {
    const SequenceLayer layer{hidden, given, qkv, rest, heads, head_dim, *pattern, met, out};
    return done([=] { layer(pieces, pieces + count); });
}

int bandrank_joint_sequences(const float* hidden, const Weights* qkv, const PostNorm* rest, int64_t heads,
                             int64_t head_dim, const Joint* sequences, int64_t count, float* out) {
    return done([=] { joint_sequences(hidden, *qkv, *rest, heads, head_dim, sequences, sequences + count, out); });
}

int bandrank_finish_cls(const Piece* pieces, int64_t count, float* met, int64_t heads, int64_t head_dim,
                        float* attended) {
    return done([=] { finish_cls(pieces, count, met, heads, head_dim, attended); });
}

// out (rows, heads, head_dim): the attention of every task's query rows. Rows of q are `stride` numbers apart, those of k
// and v `kv_stride`. biases: or null.
int bandrank_attend(const float* q, int64_t stride, int64_t heads, const float* k, const float* v, int64_t kv_stride,
                    int64_t kv_heads, int64_t head_dim, const Task* tasks, int64_t count, const Biases* biases, float* out) {
    return done([=] {
        attend_tasks({q, stride}, {k, kv_stride}, {v, kv_stride}, heads, kv_heads, head_dim, tasks, tasks + count, out,
                     scratch.attention, biases);
    });
}

// The attention of rows to a query that all of them see, and to their own candidate; see shared_query.h.
int bandrank_attend_shared(const float* rows, int64_t stride, int64_t num_rows, int64_t own, const float* keys,
                           const float* values, int64_t count, int64_t heads, int64_t head_dim, float* out) {
    return done([=] {
        attend_shared(rows, stride, num_rows, own, keys, values, count, heads, head_dim, out, scratch.attention);
    });
}

// Layers one after the other; see stack.h.
int bandrank_stack(const Sequences* sequences, const Layer* layers, int64_t count, const float* hidden, float* even,
                   float* odd, int64_t first, float* out) {
    return done([=] {
        float* const states[2] = {even, odd};
        stack(*sequences, layers, count, hidden, states, first, out);
    });
}

// The norm of a sum of rows, from row `begin` to row `end`.
int bandrank_norm_of_sum(const Addend* addends, int64_t count, const Norm* norm, int64_t begin, int64_t end, int64_t n,
                         float* out) {
    return norm_of_sum(addends, count, *norm, begin, end, n, out) ? 0 : NO_SUCH_ROW;
}

int bandrank_dense(const float* x, int64_t rows, int64_t inputs, const float* transposed, const float* bias,
                   int64_t outputs, float* out) {
    return done([=] { dense(x, rows, inputs, transposed, bias, outputs, out); });
}

int bandrank_keep_awake(int64_t* until) { return keep_awake(until), 0; }

int bandrank_awake_for(int64_t* until, int64_t ns) { return awake_for(until, ns), 0; }

}  // extern "C"
#pragma GCC visibility pop
