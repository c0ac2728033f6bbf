// The functions that Python calls. Each runs on the thread that calls it, and any number of threads may call them.
#include <vector>

#include "attention.h"
#include "gemm.h"

using namespace bandrank;

namespace {

// Rows that go through a chain of products together, so that what is between them stays in the second-level cache.
constexpr int64_t BLOCK_ROWS = 16 * TILE_ROWS;

struct Scratch {
    std::vector<uint8_t> bytes;
    std::vector<float> first, second;
    std::vector<Quantisation> steps;
    AttentionScratch attention;
};
thread_local Scratch scratch;

// The quantised rows of a block, in the scratch of this thread.
const uint8_t* quantise_rows(const float* x, int64_t stride, int64_t count, const Weights& w) {
    scratch.bytes.resize(BLOCK_ROWS * w.inputs);
    scratch.steps.resize(BLOCK_ROWS);
    for (int64_t row = 0; row < count; ++row)
        scratch.steps[row] = quantise(x + row * stride, w.smooth, w.inputs, scratch.bytes.data() + row * w.inputs);
    return scratch.bytes.data();
}

template <class Write>
void product(const float* x, int64_t stride, int64_t count, const Weights& w, Write&& write) {
    const uint8_t* bytes = quantise_rows(x, stride, count, w);
    multiply(bytes, scratch.steps.data(), count, w, write);
}

// As many of the values as there is room for, which may be none.
void store_some(float* to, Floats values, int64_t room) {
    if (room >= LANES) return store(to, values);
    if (room > 0) std::memcpy(to, &values, room * sizeof(float));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int bandrank_panel() { return PANEL; }
int bandrank_block_rows() { return BLOCK_ROWS; }

void bandrank_pack(const int8_t* weight, int64_t outputs, int64_t inputs, int8_t* panels, int32_t* sums) {
    pack(weight, outputs, inputs, panels, sums);
}

// out (rows, outputs) = activation(x W^T + bias); x has `stride` numbers from row to row.
void bandrank_linear(const float* x, int64_t stride, int64_t rows, const Weights* weights, int gelu_follows,
                     float* out) {
    const Weights& w = *weights;
    for (int64_t begin = 0; begin < rows; begin += BLOCK_ROWS)
        product(x + begin * stride, stride, std::min(BLOCK_ROWS, rows - begin), w,
                [&](int64_t row, int64_t output, Floats y) {
                    store_some(out + (begin + row) * w.outputs + output, gelu_follows ? gelu(y) : y,
                               w.outputs - output);
                });
}

struct Norm {
    const float *weight, *bias;
    float eps;
};
struct PostNorm {
    const Weights *out, *up, *down;
    Norm attention_norm, out_norm;
};

// The rest of BERT's block behind attention: out (rows, hidden_size) from what the heads give and the block's input.
void bandrank_post_norm(const float* attended, const float* hidden, int64_t rows, const PostNorm* block, float* out) {
    const PostNorm& b = *block;
    int64_t size = b.out->outputs, wide = padded(size), middle = padded(b.up->outputs);
    scratch.first.resize(BLOCK_ROWS * wide);
    scratch.second.resize(BLOCK_ROWS * middle);
    float *state = scratch.first.data(), *inner = scratch.second.data();
    auto normed = [&](const Norm& norm, int64_t row, float* to) {
        layer_norm(state + row * wide, norm.weight, norm.bias, norm.eps, size, to);
    };
    for (int64_t begin = 0; begin < rows; begin += BLOCK_ROWS) {
        int64_t count = std::min(BLOCK_ROWS, rows - begin);
        product(attended + begin * size, size, count, *b.out, [&](int64_t row, int64_t output, Floats y) {
            if (output < size) store(state + row * wide + output, y + load<Floats>(hidden + (begin + row) * size + output));
        });
        for (int64_t row = 0; row < count; ++row) normed(b.attention_norm, row, state + row * wide);
        product(state, wide, count, *b.up,
                [&](int64_t row, int64_t output, Floats y) { store(inner + row * middle + output, gelu(y)); });
        product(inner, middle, count, *b.down, [&](int64_t row, int64_t output, Floats y) {
            float* to = state + row * wide + output;
            if (output < size) store(to, y + load<Floats>(to));
        });
        for (int64_t row = 0; row < count; ++row) normed(b.out_norm, row, out + (begin + row) * size);
    }
}

// out (rows, heads, head_dim): the attention of every task's query rows. q, k, v: `stride` numbers from row to row.
void bandrank_attend(const float* q, const float* k, const float* v, int64_t stride, int64_t heads, int64_t head_dim,
                     const Task* tasks, int64_t count, float* out) {
    for (const Task* task = tasks; task < tasks + count; ++task)
        for (int64_t column = 0; column < heads * head_dim; column += head_dim)
            attend({q + column, stride}, {k + column, stride}, {v + column, stride}, head_dim, *task,
                   {out + column, heads * head_dim}, scratch.attention);
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
