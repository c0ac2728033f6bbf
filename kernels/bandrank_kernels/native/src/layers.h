// Layers of an encoder, one block of rows at a time, so that what is between two products stays in the cache.
#pragma once
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "rotary.h"

namespace bandrank {

// Rows that go through a chain of products together, so that what is between them stays in the second-level cache.
constexpr int64_t CHAIN_ROWS = 96;
static_assert(CHAIN_ROWS % TILE_ROWS == 0, "they are whole tiles of rows");

// Rows of a sequence, such as a candidate: all of them, or a run of a long one. With them come the rows of its query and
// its [CLS] row (-1 if it has none), which are before all sequences.
struct Piece {
    Run rows, query;
    int64_t cls;
    Run sequence;
};
static_assert(sizeof(Piece) == 7 * sizeof(int64_t), "a row of the table of pieces");

struct Scratch {
    Buffer<Level> bytes;
    Buffer<float> first, second;
    Buffer<Quantisation> steps;
    AttentionScratch attention;
    Buffer<float> qkv, attended, gathered, results;
    Buffer<float> given, before, met;
    std::vector<Softmax> softmax;
    std::vector<Piece> pieces;
};
inline thread_local Scratch scratch;

// y = x W^T + bias for the rows of a block, whose bytes are in the scratch of this thread; see `multiply`.
template <class Write>
inline void product(const float* x, int64_t stride, int64_t count, const Weights& w, Write write) {
    const int64_t length = w.bytes();
    Level* bytes = scratch.bytes.room(CHAIN_ROWS * length);
    Quantisation* steps = scratch.steps.room(CHAIN_ROWS);
#if defined(__AVX512BF16__)
    if (w.bf16) {
        for (int64_t row = 0; row < count; ++row) round_to_bf16(x + row * stride, w.inputs, bytes + row * length);
        return multiply<Of::BF16>(bytes, steps, count, w, write);
    }
#endif
    for (int64_t row = 0; row < count; ++row)
        steps[row] = quantise(x + row * stride, w.split, w.inputs, bytes + row * length);
    multiply<Of::BYTES>(bytes, steps, count, w, write);
}

// Stores as many of the values as there is room for, which may be none.
inline void store_some(float* to, Floats values, int64_t room) {
    if (room >= LANES) return store(to, values);
    if (room > 0) std::memcpy(to, &values, room * sizeof(float));
}

// out (rows, outputs) = activation(x W^T + bias); rows of x and out are `stride` and `out_stride` numbers apart.
inline void linear(const float* x, int64_t stride, int64_t rows, const Weights& w, bool gelu_follows, float* out,
                   int64_t out_stride) {
    for (int64_t begin = 0; begin < rows; begin += CHAIN_ROWS)
        product(x + begin * stride, stride, std::min(CHAIN_ROWS, rows - begin), w,
                [=, outputs = w.outputs, out = out + begin * out_stride](int64_t row, int64_t output, Floats y) {
                    store_some(out + row * out_stride + output, gelu_follows ? gelu(y) : y, outputs - output);
                });
}
inline void linear(const float* x, int64_t stride, int64_t rows, const Weights& w, bool gelu_follows, float* out) {
    linear(x, stride, rows, w, gelu_follows, out, w.outputs);
}

// out (rows, 3 size): the keys and values of rows behind their queries, which may be left out.
inline void project_keys(const float* x, int64_t rows, const Weights& qkv, float* out) {
    const int64_t size = qkv.outputs / 3, first = size % PANEL ? 0 : size;
    linear(x, qkv.inputs, rows, qkv.part(first, qkv.outputs), false, out + first, qkv.outputs);
}

// out (rows, outputs) = x W^T + bias in float32, every row by itself. transposed: W^T, (inputs, padded outputs).
inline void dense(const float* x, int64_t rows, int64_t inputs, const float* transposed, const float* bias,
                  int64_t outputs, float* out) {
    const int64_t wide = padded(outputs);
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

// out: `count` rows of n numbers, normed; rows of x and out are `stride` and `out_stride` numbers apart.
inline void normalise_rows(const float* x, int64_t stride, const Norm& norm, int64_t count, int64_t n, float* out,
                           int64_t out_stride) {
    for (int64_t row = 0; row < count; ++row) normalise(x + row * stride, norm, n, out + row * out_stride);
}

// out (rows, heads head_dim): queries, keys and values of rows, or some of these. Rows are normed first if the norm has
// weights, and the first heads are turned.
inline void project(const float* x, int64_t rows, const Weights& qkv, const Norm& norm, const Turn& turn, float* out) {
    float* normed = scratch.first.room(CHAIN_ROWS * qkv.inputs);
    for (int64_t begin = 0; begin < rows; begin += CHAIN_ROWS) {
        const int64_t count = std::min(CHAIN_ROWS, rows - begin);
        const float* from = x + begin * qkv.inputs;
        if (norm.weight) {
            normalise_rows(from, qkv.inputs, norm, count, qkv.inputs, normed, qkv.inputs);
            from = normed;
        }
        float* to = out + begin * qkv.outputs;
        linear(from, qkv.inputs, count, qkv, false, to);
        turn(to, qkv.outputs, begin, count);
    }
}

// What a feed-forward sublayer computes between its two products: GELU, or a gated unit (Shazeer 2020, arXiv 2002.05202), where
// the first half of the numbers is the gate.
enum Unit : int64_t { PLAIN_GELU, GEGLU, SWIGLU, GEGLU_TANH };

// inner (count, padded outputs of `up`): the unit's results, half as many if it is gated. Rows of x are `wide` numbers
// apart.
inline void raise(const float* x, int64_t wide, int64_t count, const Weights& up, int64_t unit, float* inner) {
    const int64_t middle = padded(up.outputs), half = up.outputs / 2;
    if (unit == PLAIN_GELU)
        return product(x, wide, count, up,
                       [=](int64_t row, int64_t output, Floats y) { store(inner + row * middle + output, gelu(y)); });
    product(x, wide, count, up,
            [=](int64_t row, int64_t output, Floats y) { store(inner + row * middle + output, y); });
    for (int64_t row = 0; row < count; ++row) {
        float *gate = inner + row * middle, *gated = gate + half;
        for (int64_t i = 0; i < half; i += LANES) {
            const Floats opens = load<Floats>(gate + i);
            const Floats open = unit == GEGLU ? gelu(opens) : unit == SWIGLU ? silu(opens) : gelu_tanh(opens);
            store(gate + i, open * load<Floats>(gated + i));
        }
    }
}

// to (count, outputs) = x W^T + bias + residual; strides are in numbers.
inline void add_product(const float* x, int64_t stride, int64_t count, const Weights& w, const float* residual,
                        int64_t residual_stride, float* to, int64_t to_stride) {
    product(x, stride, count, w, [=, outputs = w.outputs](int64_t row, int64_t output, Floats y) {
        if (output < outputs)
            store(to + row * to_stride + output, y + load<Floats>(residual + row * residual_stride + output));
    });
}

// The products of a block after its attention: the output projection, and the two of the feed-forward sublayer.
struct Products {
    const Weights *out, *up, *down;
    int64_t unit;
};
struct PostNorm {
    Products products;
    Norm attention_norm, out_norm;
};

// BERT's block after its attention: out (rows, hidden_size) from the heads' output and the block's input.
inline void post_norm(const float* attended, const float* hidden, int64_t rows, const PostNorm& b, float* out) {
    const Products& p = b.products;
    const int64_t size = p.out->outputs, wide = padded(size), middle = padded(p.up->outputs);
    float *state = scratch.first.room(CHAIN_ROWS * wide), *inner = scratch.second.room(CHAIN_ROWS * middle);
    for (int64_t begin = 0; begin < rows; begin += CHAIN_ROWS) {
        const int64_t count = std::min(CHAIN_ROWS, rows - begin), start = begin * size;
        add_product(attended + start, size, count, *p.out, hidden + start, size, state, wide);
        normalise_rows(state, wide, b.attention_norm, count, size, state, wide);
        raise(state, wide, count, *p.up, p.unit, inner);
        add_product(inner, middle, count, *p.down, state, wide, state, wide);
        normalise_rows(state, wide, b.out_norm, count, size, out + start, size);
    }
}

// final_norm: after the last layer of an encoder.  update_norm, down_norm: of what the sublayers add to the residual. A norm
// without weights is left out.
struct PreNorm {
    Products products;
    Norm up_norm, final_norm, update_norm{}, down_norm{};
};

// to (count, outputs) = norm(x W^T + bias) + residual.  room: (count, padded outputs).
inline void add_normed(const float* x, int64_t stride, int64_t count, const Weights& w, const Norm& norm,
                       const float* residual, float* to, float* room) {
    const int64_t size = w.outputs, wide = padded(size);
    if (!norm.weight) return add_product(x, stride, count, w, residual, size, to, size);
    product(x, stride, count, w, [=](int64_t row, int64_t output, Floats y) { store(room + row * wide + output, y); });
    normalise_rows(room, wide, norm, count, size, room, wide);
    for (int64_t row = 0; row < count; ++row)
        for (int64_t i = 0; i < size; i += LANES) {
            const int64_t at = row * size + i;
            store(to + at, load<Floats>(room + row * wide + i) + load<Floats>(residual + at));
        }
}

// `post_norm` for a block whose second norm is before the feed-forward sublayer, and whose residuals are not normed.
// attended: (rows, out.inputs).
inline void pre_norm(const float* attended, const float* hidden, int64_t rows, const PreNorm& b, float* out) {
    const Products& p = b.products;
    const int64_t size = p.out->outputs, wide = padded(size), middle = padded(p.up->outputs);
    float *normed = scratch.first.room(CHAIN_ROWS * wide), *inner = scratch.second.room(CHAIN_ROWS * middle);
    for (int64_t begin = 0; begin < rows; begin += CHAIN_ROWS) {
        const int64_t count = std::min(CHAIN_ROWS, rows - begin), start = begin * size;
        float* state = out + start;
        const int64_t given = p.out->inputs;
        add_normed(attended + begin * given, given, count, *p.out, b.update_norm, hidden + start, state, normed);
        normalise_rows(state, size, b.up_norm, count, size, normed, wide);
        raise(normed, wide, count, *p.up, p.unit, inner);
        add_normed(inner, middle, count, *p.down, b.down_norm, state, state, normed);
        if (b.final_norm.weight) normalise_rows(state, size, b.final_norm, count, size, state, size);
    }
}

// Who sees whom. window: how far each row sees in its own sequence; negative: all of it.
struct Pattern {
    int64_t window, cls_to_query, cls_to_rows, rows_to_cls, rows_to_query;
};

// A layer of an encoder for the rows of sequences, and the attention of their [CLS]. The rows are taken in chunks of
// several sequences or of a part of one. Queries, keys and values, which are three times as many numbers as the rows,
// are computed for a chunk and the rows that it sees, and never go out to memory; or they are given.
struct SequenceLayer {
    static constexpr int64_t CHUNK = 128;

    const float* hidden;  // (rows, size) the layer's input
    const float* given;   // (rows, 3 size) queries, keys and values: of the rows before all sequences; without `qkv`, of all
    const Weights* qkv;   // or null
    const PostNorm* rest;  // or null if only the attention of [CLS] is wanted
    int64_t heads, head_dim;
    Pattern pattern;
    float* met;  // (pieces, size + 2 heads) the softmax of [CLS] over each: `sums` of all heads, then their `top` and `norm`
    float* out;  // (rows, size) the layer's output for the rows of sequences

    int64_t size() const { return heads * head_dim; }
    int64_t met_size() const { return size() + 2 * heads; }

    void operator()(const Piece* pieces, const Piece* last) const {
        for (const Piece* next = pieces; next < last;) {
            const Piece* first = next++;
            int64_t count = first->rows.count;
            if (pattern.window >= 0 && count > CHUNK) {
                for (int64_t begin = 0; begin < count; begin += CHUNK)
                    chunk(pieces, first, next, {first->rows.first + begin, std::min(CHUNK, count - begin)});
            } else {
                for (; next < last && count + next->rows.count <= CHUNK; ++next) count += next->rows.count;
                chunk(pieces, first, next, {first->rows.first, count});
            }
        }
        scratch.qkv.clear_if_large();
    }

    void chunk(const Piece* pieces, const Piece* first, const Piece* last, Run rows) const {
        const Rows q = projected(first->sequence, last[-1].sequence, rows);
        scratch.attended.room(rows.count * size());
        for (const Piece* each = first; each < last; ++each) {
            const int64_t low = std::max(each->rows.first, rows.first);
            const Run part{low, std::min(each->rows.end(), rows.end()) - low};
            if (rest && part.count) attend_rows_of(*each, part, q, {scratch.attended.data(), size(), rows.first});
            if (each->cls >= 0) attend_cls(*each, part, q, met + (each - pieces) * met_size());
        }
        const int64_t start = rows.first * size();
        if (rest) post_norm(scratch.attended.data(), hidden + start, rows.count, *rest, out + start);
    }

    // Queries, keys and values of the rows and of those that they see, in sequences from `first` to `last`; the queries are
    // undefined if only [CLS] attends.
    Rows projected(Run first, Run last, Run rows) const {
        if (!qkv) return {given, 3 * size()};
        const int64_t begin = pattern.window < 0 ? first.first : std::max(first.first, rows.first - pattern.window);
        const int64_t end = pattern.window < 0 ? last.end() : std::min(last.end(), rows.end() + pattern.window);
        float* room = scratch.qkv.room((end - begin) * 3 * size());
        const float* from = hidden + begin * size();
        if (rest)
            linear(from, size(), end - begin, *qkv, false, room);
        else
            project_keys(from, end - begin, *qkv, room);
        return {room, 3 * size(), begin, given};
    }

    void attend_rows_of(const Piece& piece, Run part, Rows q, Rows to) const {
        Task task{part, {}, {}, pattern.window};
        Run* keys = task.keys;
        if (pattern.rows_to_cls && piece.cls >= 0) *keys++ = {piece.cls, 1};
        if (pattern.rows_to_query) *keys++ = piece.query;
        if (pattern.window < 0) {
            *keys++ = piece.sequence;
        } else {
            const int64_t low = std::max(piece.sequence.first, part.first - pattern.window);
            task.band = {low, std::min(piece.sequence.end(), part.end() + pattern.window) - low};
        }
        const Rows k = q + size(), v = k + size();
        for (int64_t column = 0; column < size(); column += head_dim)
            attend(q + column, k + column, v + column, 1, head_dim, &task, &task + 1, to + column, scratch.attention);
    }

    // [CLS] meets itself and the query with the first part of its sequence. Its softmax over a piece is written with the
    // piece's last part.
    void attend_cls(const Piece& piece, Run part, Rows q, float* met) const {
        Task task{{piece.cls, 1}, {}, {}, 0};
        if (part.first == piece.rows.first) {
            scratch.softmax.clear();
            for (int64_t column = 0; column < size(); column += head_dim)
                scratch.softmax.emplace_back(met + column, head_dim);
        }
        if (part.first == piece.sequence.first) {
            task.keys[0] = {piece.cls, 1};
            if (pattern.cls_to_query) task.keys[1] = piece.query;
        }
        if (pattern.cls_to_rows) task.keys[2] = part;
        const Rows k = q + size(), v = k + size();
        for (int64_t head = 0; head < heads; ++head) {
            const int64_t column = head * head_dim;
            Softmax& softmax = scratch.softmax[head];
            meet(q + column, k + column, v + column, head_dim, task, softmax, scratch.attention);
            if (part.end() == piece.rows.end()) {
                float* state = met + size() + 2 * head;
                state[0] = softmax.top, state[1] = softmax.norm;
            }
        }
    }
};

// attended (rows before all sequences, heads head_dim): the attention of [CLS], merged from its softmax over each piece.
// The sums of a sequence's first piece become those of the sequence.
inline void finish_cls(const Piece* pieces, int64_t count, float* met, int64_t heads, int64_t head_dim,
                       float* attended) {
    const int64_t size = heads * head_dim, met_size = size + 2 * heads;
    auto softmax = [&](int64_t piece, int64_t head) {
        float* of_piece = met + piece * met_size;
        return Softmax(of_piece + head * head_dim, of_piece[size + 2 * head], of_piece[size + 2 * head + 1]);
    };
    for (int64_t first = 0, next; first < count; first = next) {
        next = first + 1;
        while (next < count && pieces[next].sequence.first == pieces[first].sequence.first &&
               pieces[next].rows.first > pieces[first].rows.first)
            ++next;
        if (pieces[first].cls < 0) continue;
        for (int64_t head = 0; head < heads; ++head) {
            Softmax whole = softmax(first, head);
            for (int64_t piece = first + 1; piece < next; ++piece) whole.merge(softmax(piece, head), head_dim);
            whole.finish(head_dim, attended + pieces[first].cls * size + head * head_dim);
        }
    }
}

}  // namespace bandrank
