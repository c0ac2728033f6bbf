// Layers of an encoder, block by block of rows, so that what is between two products stays in the cache.
#pragma once
#include <vector>

#include "attention.h"
#include "gemm.h"

namespace bandrank {

// Rows that go through a chain of products together, so that what is between them stays in the second-level cache.
constexpr int64_t BLOCK_ROWS = 16 * TILE_ROWS;

struct Scratch {
    std::vector<uint8_t> bytes;
    std::vector<float> first, second;
    std::vector<Quantisation> steps;
    AttentionScratch attention;
    std::vector<float> qkv, attended, sums;
    std::vector<Softmax> softmax;
};
inline thread_local Scratch scratch;

// The quantised rows of a block, in the scratch of this thread.
inline const uint8_t* quantise_rows(const float* x, int64_t stride, int64_t count, const Weights& w) {
    scratch.bytes.resize(BLOCK_ROWS * w.bytes());
    scratch.steps.resize(BLOCK_ROWS);
    for (int64_t row = 0; row < count; ++row)
        scratch.steps[row] = quantise(x + row * stride, w.split, w.inputs, scratch.bytes.data() + row * w.bytes());
    return scratch.bytes.data();
}

template <class Write>
inline void product(const float* x, int64_t stride, int64_t count, const Weights& w, Write&& write) {
    const uint8_t* bytes = quantise_rows(x, stride, count, w);
    multiply(bytes, scratch.steps.data(), count, w, write);
}

// As many of the values as there is room for, which may be none.
inline void store_some(float* to, Floats values, int64_t room) {
    if (room >= LANES) return store(to, values);
    if (room > 0) std::memcpy(to, &values, room * sizeof(float));
}

// out (rows, outputs) = activation(x W^T + bias); x has `stride` numbers from row to row.
inline void linear(const float* x, int64_t stride, int64_t rows, const Weights& w, bool gelu_follows, float* out) {
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
inline void post_norm(const float* attended, const float* hidden, int64_t rows, const PostNorm& b, float* out) {
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

// Rows that attend to each other, such as those of a candidate, with the rows of its query and its [CLS] row, if it has
// one (else -1), which come before all sequences.
struct Sequence {
    Run rows, query;
    int64_t cls;
    int64_t end() const { return rows.first + rows.count; }
};
static_assert(sizeof(Sequence) == 5 * sizeof(int64_t), "a row of the table of sequences");

// Who sees whom. window: of its own sequence, each row sees those so far away; negative: all.
struct Pattern {
    int64_t window, cls_to_query, cls_to_rows, rows_to_cls, rows_to_query;
};

// A layer of an encoder for the rows of sequences, and the attention of their [CLS]. Queries, keys and values, which are
// three times as many numbers as the rows, are used where they are made, and never go out to memory: the rows are taken
// in chunks of several sequences, or of a part of one with its window.
struct SequenceLayer {
    static constexpr int64_t CHUNK = 128;
    static constexpr size_t MOST_KEPT = 1 << 20;  // numbers; a long sequence without a window needs more

    const float* hidden;  // (rows, size) the layer's input
    const float* before;  // (rows before all sequences, 3 size) their queries, keys and values
    const Weights& qkv;
    const PostNorm* rest;  // or null: the attention of [CLS] is all that is wanted
    int64_t heads, head_dim;
    Pattern pattern;
    float* attended_cls;  // (rows before all sequences, size)
    float* out;           // (rows, size) the layer's output, of the rows of sequences

    int64_t size() const { return heads * head_dim; }

    void operator()(const Sequence* next, const Sequence* last) const {
        while (next < last) {
            const Sequence* first = next++;
            int64_t count = first->rows.count;
            if (pattern.window >= 0 && count > CHUNK) {
                for (int64_t begin = 0; begin < count; begin += CHUNK)
                    chunk(first, next, {first->rows.first + begin, std::min(CHUNK, count - begin)});
            } else {
                for (; next < last && count + next->rows.count <= CHUNK; ++next) count += next->rows.count;
                chunk(first, next, {first->rows.first, count});
            }
        }
        if (scratch.qkv.size() > MOST_KEPT) std::vector<float>().swap(scratch.qkv);
    }

    void chunk(const Sequence* first, const Sequence* last, Run rows) const {
        const int64_t end = rows.first + rows.count, reach = std::max<int64_t>(pattern.window, 0);
        const int64_t from = std::max(first->rows.first, rows.first - reach), to = std::min(last[-1].end(), end + reach);
        scratch.qkv.resize((to - from) * 3 * size());
        scratch.attended.resize(rows.count * size());
        linear(hidden + from * size(), size(), to - from, qkv, false, scratch.qkv.data());
        const Rows q{scratch.qkv.data(), 3 * size(), from, before};
        for (const Sequence* each = first; each < last; ++each) {
            const int64_t low = std::max(each->rows.first, rows.first), high = std::min(each->end(), end);
            const Run part{low, high - low};
            if (rest && part.count) attend_rows_of(*each, part, q, {scratch.attended.data(), size(), rows.first});
            if (each->cls >= 0) attend_cls(*each, part, q);
        }
        const int64_t start = rows.first * size();
        if (rest) post_norm(scratch.attended.data(), hidden + start, rows.count, *rest, out + start);
    }

    void attend_rows_of(const Sequence& sequence, Run part, Rows q, Rows to) const {
        Task task{part, {}, {}, pattern.window};
        Run* keys = task.keys;
        if (pattern.window < 0) *keys++ = sequence.rows;
        if (pattern.rows_to_cls && sequence.cls >= 0) *keys++ = {sequence.cls, 1};
        if (pattern.rows_to_query) *keys++ = sequence.query;
        if (pattern.window >= 0) {
            const int64_t low = std::max(sequence.rows.first, part.first - pattern.window);
            task.band = {low, std::min(sequence.end(), part.first + part.count + pattern.window) - low};
        }
        for (int64_t column = 0; column < size(); column += head_dim)
            attend(q + column, q + (size() + column), q + (2 * size() + column), head_dim, task, to + column,
                   scratch.attention);
    }

    // [CLS] meets itself and the query with the first part of its sequence, and is done with the last.
    void attend_cls(const Sequence& sequence, Run part, Rows q) const {
        Task task{{sequence.cls, 1}, {}, {}, 0};
        if (part.first == sequence.rows.first) {
            task.keys[0] = {sequence.cls, 1};
            if (pattern.cls_to_query) task.keys[1] = sequence.query;
            scratch.sums.resize(size());
            scratch.softmax.clear();
            for (int64_t column = 0; column < size(); column += head_dim)
                scratch.softmax.emplace_back(scratch.sums.data() + column, head_dim);
        }
        if (pattern.cls_to_rows) task.keys[2] = part;
        for (int64_t head = 0; head < heads; ++head) {
            const int64_t column = head * head_dim;
            meet(q + column, q + (size() + column), q + (2 * size() + column), head_dim, task, scratch.softmax[head],
                 scratch.attention);
            if (part.first + part.count == sequence.end())
                scratch.softmax[head].finish(head_dim, attended_cls + sequence.cls * size() + column);
        }
    }
};

}  // namespace bandrank
