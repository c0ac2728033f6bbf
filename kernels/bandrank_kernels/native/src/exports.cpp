// The functions that Python calls. Each runs on the thread that calls it, and any number of threads may call them.
#include "shared_query.h"
#include "stack.h"

using namespace bandrank;

#pragma GCC visibility push(default)
extern "C" {

// Whether this process may run them; to be called first.
int bandrank_start() { return ask_for_tiles(); }

int bandrank_panel() { return PANEL; }
int bandrank_depth() { return DEPTH; }
int bandrank_block_rows() { return CHAIN_ROWS; }
int bandrank_tiled() { return TILED; }

void bandrank_pack(const int8_t* weight, int64_t outputs, int64_t given, int64_t bytes, int8_t* panels,
                   int32_t* sums) {
    pack(weight, outputs, given, bytes, panels, sums);
}

void bandrank_linear(const float* x, int64_t stride, int64_t rows, const Weights* weights, int gelu_follows,
                     float* out) {
    linear(x, stride, rows, *weights, gelu_follows, out);
}

void bandrank_post_norm(const float* attended, const float* hidden, int64_t rows, const PostNorm* block, float* out) {
    post_norm(attended, hidden, rows, *block, out);
}

void bandrank_pre_norm(const float* attended, const float* hidden, int64_t rows, const PreNorm* block, float* out) {
    pre_norm(attended, hidden, rows, *block, out);
}

void bandrank_project(const float* x, int64_t rows, const Weights* qkv, const Norm* norm, const Turn* turn, float* out) {
    project(x, rows, *qkv, *norm, *turn, out);
}

// The layer of some pieces of sequences; see SequenceLayer.
void bandrank_sequences(const float* hidden, const float* given, const Weights* qkv, const PostNorm* rest,
                        int64_t heads, int64_t head_dim, const Pattern* pattern, const Piece* pieces, int64_t count,
                        float* met, float* out) {
    SequenceLayer layer{hidden, given, qkv, rest, heads, head_dim, *pattern, met, out};
    layer(pieces, pieces + count);
}

void bandrank_joint_sequences(const float* hidden, const Weights* qkv, const PostNorm* rest, int64_t heads,
                              int64_t head_dim, const Joint* sequences, int64_t count, float* out) {
    joint_sequences(hidden, *qkv, *rest, heads, head_dim, sequences, sequences + count, out);
}

void bandrank_finish_cls(const Piece* pieces, int64_t count, float* met, int64_t heads, int64_t head_dim,
                         float* attended) {
    finish_cls(pieces, count, met, heads, head_dim, attended);
}

// out (rows, heads, head_dim): the attention of every task's query rows. q, k, v: `stride` numbers from row to row.
// biases: or null.
void bandrank_attend(const float* q, const float* k, const float* v, int64_t stride, int64_t heads, int64_t head_dim,
                     const Task* tasks, int64_t count, const Biases* biases, float* out) {
    attend_tasks(q, k, v, stride, heads, head_dim, tasks, tasks + count, out, scratch.attention, biases);
}

// The attention of rows to a query that all see, and to their own candidate; see shared_query.h.
void bandrank_attend_shared(const float* rows, int64_t stride, int64_t num_rows, int64_t own, const float* keys,
                            const float* values, int64_t count, int64_t heads, int64_t head_dim, float* out) {
    attend_shared(rows, stride, num_rows, own, keys, values, count, heads, head_dim, out, scratch.attention);
}

// Numbers behind the last bias of a head that may be read.
int bandrank_bias_room() { return 2 * LANES; }

// Layers one after the other; see stack.h.
void bandrank_stack(const Sequences* sequences, const Layer* layers, int64_t count, const float* hidden, float* even,
                    float* odd, int64_t first, float* out) {
    float* const states[2] = {even, odd};
    stack(*sequences, layers, count, hidden, states, first, out);
}

// out (rows, outputs) = x W^T + bias in float32, every row by itself. transposed: W^T, (inputs, padded outputs).
void bandrank_dense(const float* x, int64_t rows, int64_t inputs, const float* transposed, const float* bias,
                    int64_t outputs, float* out) {
    int64_t wide = padded(outputs);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t first = 0; first < outputs; first += PANEL) {
            Floats totals[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; ++v) totals[v] = load<Floats>(bias + first + v * LANES);
            for (int64_t i = 0; i < inputs; ++i)
                for (int v = 0; v < TILE_VECTORS; ++v)
                    totals[v] += x[row * inputs + i] * load<Floats>(transposed + i * wide + first + v * LANES);
            for (int v = 0; v < TILE_VECTORS; ++v)
                store_some(out + row * outputs + first + v * LANES, totals[v], outputs - first - v * LANES);
        }
}

}  // extern "C"
#pragma GCC visibility pop
