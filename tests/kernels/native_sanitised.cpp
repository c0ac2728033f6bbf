// Runs every exported function on odd sizes, in memory of exactly the size that it may touch. Built with sanitizers, it is to
// end; with an argument, it prints what the functions gave, which is to be nearly the same on every processor.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "exports.cpp"

namespace {

std::mt19937 numbers(1);

std::vector<float> floats(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> result(count);
    for (float& each : result) each = normal(numbers);
    return result;
}

// Rows of drawn numbers, each with zeros behind it: the same numbers however wide a row is.
std::vector<float> padded_floats(int64_t rows, int64_t count, int64_t wide) {
    std::vector<float> result(rows * wide);
    for (int64_t row = 0; row < rows; ++row) std::ranges::copy(floats(count), result.begin() + row * wide);
    return result;
}

std::vector<float> given;  // by all functions, one behind the other

void keep(const std::vector<float>& numbers) { given.insert(given.end(), numbers.begin(), numbers.end()); }

bool of_bf16 = false;  // whether layers are, in variants that have them

std::vector<int8_t> bytes_of(int64_t count) {
    std::vector<int8_t> result(of_bf16 ? 2 * count : count);
    for (int8_t& each : result) each = (int8_t)(numbers() % 255 - 127);
    if (of_bf16)
        for (int64_t i = 0; i < count; ++i) result[2 * i + 1] = (int8_t)(0x3d | (result[2 * i + 1] & 0x80));  // near 0.05
    return result;
}

// A layer; the last three of its inputs have the copies, which layers in bfloat16 do not have.
struct Product {
    std::vector<int8_t> panels;
    std::vector<int32_t> sums, sources;
    std::vector<float> scales, bias, shares, offsets;
    Weights weights;

    Product(int64_t outputs, int64_t inputs, int64_t wanted = 0)
        : scales(padded_floats(1, outputs, padded(outputs))), bias(padded_floats(1, outputs, padded(outputs))) {
        const int64_t copies = of_bf16 ? 0 : wanted;
        sources.resize(copies), shares.assign(inputs + copies, 1.0f), offsets.assign(inputs + copies, 0.5f);
        weights = {outputs, inputs, of_bf16, {copies, nullptr, nullptr, nullptr}, nullptr, nullptr, nullptr, nullptr};
        panels.resize(padded(outputs) * weights.bytes()), sums.resize(padded(outputs));
        const std::vector<int8_t> rows = bytes_of(outputs * (inputs + copies));
        bandrank_pack(rows.data(), outputs, (int64_t)rows.size() / outputs, weights.bytes(), panels.data(), sums.data());
        for (int64_t i = 0; i < copies; ++i) {
            sources[i] = (int32_t)(inputs - 1 - i % 3);
            shares[inputs + i] = shares[sources[i]] = 0.25f;
            offsets[inputs + i] = 0.375f;
        }
        Split split{copies, sources.data(), copies ? shares.data() : nullptr, copies ? offsets.data() : nullptr};
        weights = {outputs, inputs, of_bf16, split, panels.data(), scales.data(), sums.data(), bias.data()};
    }
};

void try_layers(int64_t rows, int64_t size, int64_t inner) {
    Product out(size, size), up(inner, size, 16), down(size, inner), odd(inner + 1, size, 32);
    std::vector<float> x = floats(rows * size), hidden = floats(rows * size), norm = floats(size), result(rows * size);
    std::vector<float> wide(rows * (inner + 1)), strided = floats(rows * (size + 3));
    bandrank_linear(strided.data(), size + 3, rows, &odd.weights, 1, wide.data());
    keep(wide);
    Product both(2 * inner, size);  // of a gated unit
    const Norm with_bias{norm.data(), norm.data(), 1e-12f}, without{norm.data(), nullptr, 1e-12f};
    for (int64_t unit : {PLAIN_GELU, GEGLU, SWIGLU}) {
        const Weights* first = unit == PLAIN_GELU ? &up.weights : &both.weights;
        PostNorm post{&out.weights, first, &down.weights, unit, with_bias, without};
        bandrank_post_norm(x.data(), hidden.data(), rows, &post, result.data());
        keep(result);
        for (const Norm& final : {without, Norm{}}) {
            PreNorm pre{&out.weights, first, &down.weights, unit, without, final};
            bandrank_pre_norm(x.data(), hidden.data(), rows, &pre, result.data());
            keep(result);
        }
    }
    Product narrow(size, size + 16);
    std::vector<float> attended = floats(rows * (size + 16));
    const Norm rms{norm.data(), nullptr, 1e-6f, 0};
    PreNorm gemma{&narrow.weights, &both.weights, &down.weights, GEGLU_TANH, rms, rms, rms, rms};
    bandrank_pre_norm(attended.data(), hidden.data(), rows, &gemma, result.data());
    keep(result);
    std::vector<float> transposed = padded_floats(size, inner + 1, padded(inner + 1));
    std::vector<float> bias = padded_floats(1, inner + 1, padded(inner + 1));
    bandrank_dense(x.data(), rows, size, transposed.data(), bias.data(), inner + 1, wide.data());
    keep(wide);
}

void try_norms(int64_t rows, int64_t size) {
    std::vector<float> words = floats(5 * size), x = floats(rows * size), norm = floats(size), out(rows * size);
    std::vector<int64_t> ids(rows);
    for (int64_t& id : ids) id = (int64_t)(numbers() % 5);
    const Norm each{norm.data(), norm.data(), 1e-12f};
    const Addend addends[]{{words.data(), ids.data(), 5, size}, {x.data(), nullptr, rows, size}};
    bandrank_norm_of_sum(addends, 2, &each, 0, rows, size, out.data());
    keep(out);
    if (!rows) return;
    ids[rows - 1] = 5;
    if (!bandrank_norm_of_sum(addends, 2, &each, 0, rows, size, out.data())) abort();
}

// Rows whose numbers have no steps; what is made of them differs between processors.
void try_odd_rows() {
    Product layer(65, 48, 16);
    std::vector<float> x(6 * 48), out(6 * 65);
    const float odd[]{0.0f, -0.0f, 1e-44f, 1e-38f, -INFINITY, NAN};
    for (int64_t row = 0; row < 6; ++row) x[row * 48 + 7] = odd[row];
    bandrank_linear(x.data(), 48, 6, &layer.weights, 0, out.data());
}

void try_projection(int64_t heads, int64_t head_dim, int64_t rows) {
    const int64_t inputs = 48, half = head_dim / 2;
    Product qkv(3 * heads * head_dim, inputs, 16);
    std::vector<float> x = floats(rows * inputs), norm = floats(inputs), out(rows * 3 * heads * head_dim);
    std::vector<int64_t> positions(rows);
    for (int64_t row = 0; row < rows; ++row) positions[row] = row * 3 % 7;
    std::vector<float> cosines = floats(7 * half), sines = floats(7 * half);
    const std::vector<float> of_heads = floats(2 * heads * head_dim);
    for (const float* norms : {(const float*)nullptr, head_dim % 16 ? nullptr : of_heads.data()})
        for (const Norm& each : {Norm{}, Norm{norm.data(), nullptr, 1e-5f}}) {
            const Turn turn{2 * heads, head_dim, positions.data(), cosines.data(), sines.data(), norms, 1e-6f};
            bandrank_project(x.data(), rows, &qkv.weights, &each, &turn, out.data());
            keep(out);
        }
}

void try_attention(int64_t heads, int64_t head_dim, int64_t count, int64_t window) {
    int64_t rows = count + 9, size = heads * head_dim;
    std::vector<float> qkv = floats(rows * 3 * size), out(rows * size);
    std::vector<Task> tasks = {{{0, 1}, {{0, 1}, {1, 8}, {9, count}}, {0, 0}, 0},
                               {{1, 8}, {{1, 8}, {0, 0}, {0, 0}}, {0, 0}, 0}};
    if (count > 0) tasks.push_back({{9, count}, {{0, 1}, {1, 8}, {0, 0}}, {9, count}, window});
    const int64_t reach = rows - 1, stride = 2 * reach + 1 + bandrank_bias_room();
    std::vector<float> table = padded_floats(heads, 2 * reach + 1, stride);
    std::vector<int64_t> positions(rows);
    for (int64_t row = 0; row < rows; ++row) positions[row] = row;
    const Biases biases{table.data(), stride, reach, positions.data()};
    auto attend = [&](int64_t kv_heads, const Biases* each) {
        bandrank_attend(qkv.data(), 3 * size, heads, qkv.data() + size, qkv.data() + 2 * size, 3 * size, kv_heads, head_dim,
                        tasks.data(), (int64_t)tasks.size(), each, out.data());
        keep(out);
    };
    attend(heads, nullptr);
    attend(heads, &biases);
    for (Task& task : tasks) task.causal = 1;
    attend(1, nullptr);
}

// Rows that see a query, and with `own` those of their candidate.
void try_shared(int64_t head_dim, int64_t query_rows, int64_t candidates, int64_t own) {
    const int64_t heads = 2, size = heads * head_dim, rows = candidates * std::max<int64_t>(1, own);
    const int64_t stride = own ? 3 * size : size;
    std::vector<float> given = floats(rows * stride), keys = floats(query_rows * size), values = floats(query_rows * size);
    std::vector<float> out(rows * size);
    bandrank_attend_shared(given.data(), stride, rows, own, keys.data(), values.data(), query_rows, heads, head_dim,
                           out.data());
    keep(out);
}

// A layer of two heads of 16 numbers.
struct SmallLayer {
    static constexpr int64_t size = 32;
    Product qkv{3 * size, size, 16}, out{size, size}, up{48, size}, down{size, 48};
    std::vector<float> norm = floats(size);
    PostNorm rest{&out.weights, &up.weights, &down.weights, PLAIN_GELU, {norm.data(), norm.data(), 1e-12f},
                  {norm.data(), nullptr, 1e-12f}};
};

// Keeps rows of which each fourth of the first `count` belongs to a sequence without a [CLS], and may be anything.
void keep_sequences(std::vector<float> rows, int64_t count, int64_t size) {
    for (int64_t i = 3; i < count; i += 4) std::fill_n(rows.begin() + i * size, size, 0.0f);
    keep(rows);
}

// Layers of sequences: the first rows are their [CLS] and a query of eight rows.
void try_sequences(const std::vector<int64_t>& lengths, int64_t window) {
    const SmallLayer layer;
    const int64_t size = layer.size, count = (int64_t)lengths.size(), before = count + 8;
    constexpr int64_t most = 200;  // rows of a piece
    std::vector<Piece> pieces;
    int64_t rows = before;
    for (int64_t i = 0; i < count; rows += lengths[i++]) {
        int64_t begin = 0;
        do pieces.push_back({{rows + begin, std::min(most, lengths[i] - begin)}, {count, 8}, i % 4 == 3 ? -1 : i,
                             {rows, lengths[i]}});
        while ((begin += most) < lengths[i]);
    }
    std::vector<float> hidden = floats(rows * size), first(before * 3 * size), cls(before * size), to(rows * size);
    std::vector<float> all(rows * 3 * size), met(pieces.size() * (size + 4));
    bandrank_linear(hidden.data(), size, before, &layer.qkv.weights, 0, first.data());
    bandrank_linear(hidden.data(), size, rows, &layer.qkv.weights, 0, all.data());
    Pattern pattern{window, 1, 1, 1, 1};
    for (const PostNorm* each : {&layer.rest, (const PostNorm*)nullptr})
        for (const Weights* own : {(const Weights*)&layer.qkv.weights, (const Weights*)nullptr}) {
            bandrank_sequences(hidden.data(), own ? first.data() : all.data(), own, each, 2, 16, &pattern,
                               pieces.data(), (int64_t)pieces.size(), met.data(), each ? to.data() : nullptr);
            bandrank_finish_cls(pieces.data(), (int64_t)pieces.size(), met.data(), 2, 16, cls.data());
            keep_sequences(cls, count, size);
            keep_sequences(to, count, size);
        }

    const Task query{{count, 8}, {{count, 8}}, {}, -1};
    const Layer each{&layer.qkv.weights, &layer.rest}, layers[]{each, each, each};
    std::vector<float> odd(rows * size), of_cls(count * size);
    for (int64_t far : {0, 1}) {
        Sequences sequences{2, 16, rows, before, far, pattern, &query, 1, pieces.data(), (int64_t)pieces.size(), nullptr, 0};
        bandrank_stack(&sequences, layers, 3, hidden.data(), to.data(), odd.data(), -1, nullptr);
        keep_sequences(to, count, size);
        bandrank_stack(&sequences, layers, 3, hidden.data(), to.data(), odd.data(), count, of_cls.data());
        keep_sequences(of_cls, count, size);
    }
}

// Sequences of three runs each, in three places.
void try_joint(const std::vector<int64_t>& lengths) {
    const SmallLayer layer;
    const int64_t size = layer.size, count = (int64_t)lengths.size();
    std::vector<Joint> sequences;
    int64_t rows = 3 * count;
    for (int64_t i = 0; i < count; rows += lengths[i++])
        sequences.push_back({{{i, 1}, {count + 2 * i, 2}, {rows, lengths[i]}}});
    std::vector<float> hidden = floats(rows * size), to(rows * size);
    bandrank_joint_sequences(hidden.data(), &layer.qkv.weights, &layer.rest, 2, 16, sequences.data(), count, to.data());
    keep(to);

    const Layer each{&layer.qkv.weights, &layer.rest}, layers[]{each, each};
    const Sequences joint{2, 16, rows, 3 * count, 0, {}, nullptr, 0, nullptr, 0, sequences.data(), count};
    std::vector<float> odd(rows * size), of_cls(count * size);
    bandrank_stack(&joint, layers, 2, hidden.data(), to.data(), odd.data(), -1, nullptr);
    keep(odd);
    bandrank_stack(&joint, layers, 2, hidden.data(), to.data(), odd.data(), count, of_cls.data());
    keep(of_cls);
}

// A thread keeps its processor awake until the process ends, or the system refuses.
void try_awake() {
    static int64_t until = 0;
    bandrank_has_idle_priority();
    std::thread([] { bandrank_keep_awake(&until); }).detach();
    for (int i = 0; i < 3; ++i) bandrank_awake_for(&until, 1'000'000);
}

}  // namespace

void try_all() {
    try_odd_rows();
    for (int64_t rows : {0, 1, 5, 6, 7, 96, 97, 131, 193}) {
        try_layers(rows, 16, 16);
        try_layers(rows, 48, 80);
        try_norms(rows, 48);
    }
    for (int64_t head_dim : {2, 16, 24, 32, 64, 100})
        for (int64_t rows : {0, 1, 9, 97}) try_projection(2, head_dim, rows);
    for (int64_t head_dim : {16, 32, 240, 512})
        for (int64_t count : {0, 1, 3, 4, 15, 16, 17, 75, 128})
            for (int64_t window : {0, 1, 4, 37, 500}) try_attention(2, head_dim, count, window);
    for (int64_t head_dim : {16, 48, 512})
        for (int64_t query_rows : {1, 8, 13})
            for (int64_t candidates : {0, 1, 15, 16, 17, 40})
                for (int64_t own : {0, 1, 3}) try_shared(head_dim, query_rows, candidates, own);
    for (int64_t window : {-1, 0, 1, 4, 37, 500}) {
        try_sequences({}, window);
        try_sequences({0, 1, 3, 5, 0, 127, 128, 129, 60, 60, 60, 256, 300}, window);
    }
    try_joint({});
    try_joint({0, 1, 3, 124, 125, 126, 60, 60, 60, 300, 0});
}

int main(int argc, char**) {
    if (!bandrank_start()) return 1;
    try_awake();
    try_all();
    of_bf16 = HAS_BF16;
    if (of_bf16) try_all();
    if (argc > 1)
        for (float each : given) std::printf("%.9g\n", each);
    else
        std::puts("clean");
}
