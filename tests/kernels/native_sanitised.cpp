// Runs every exported function on odd sizes, in memory of exactly the size that it may touch; built with sanitizers.
#include <cstdio>
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

struct Layer {
    std::vector<int8_t> panels;
    std::vector<int32_t> sums;
    std::vector<float> scales, bias;
    Weights weights;

    Layer(int64_t outputs, int64_t inputs)
        : panels(padded(outputs) * inputs), sums(padded(outputs)), scales(floats(padded(outputs))),
          bias(floats(padded(outputs))) {
        std::vector<int8_t> rows(outputs * inputs);
        for (int8_t& each : rows) each = (int8_t)(numbers() % 255 - 127);
        bandrank_pack(rows.data(), outputs, inputs, panels.data(), sums.data());
        weights = {outputs, inputs, panels.data(), scales.data(), sums.data(), bias.data(), nullptr};
    }
};

void try_layers(int64_t rows, int64_t size, int64_t inner) {
    Layer out(size, size), up(inner, size), down(size, inner), odd(inner + 1, size);
    std::vector<float> x = floats(rows * size), hidden = floats(rows * size), norm = floats(size), result(rows * size);
    std::vector<float> wide(rows * (inner + 1)), strided = floats(rows * (size + 3));
    bandrank_linear(strided.data(), size + 3, rows, &odd.weights, 1, wide.data());
    PostNorm block{&out.weights, &up.weights, &down.weights, {norm.data(), norm.data(), 1e-12f},
                   {norm.data(), nullptr, 1e-12f}};
    bandrank_post_norm(x.data(), hidden.data(), rows, &block, result.data());
    std::vector<float> transposed = floats(size * padded(inner + 1)), bias = floats(padded(inner + 1));
    bandrank_dense(x.data(), rows, size, transposed.data(), bias.data(), inner + 1, wide.data());
}

void try_attention(int64_t heads, int64_t head_dim, int64_t count, int64_t window) {
    int64_t rows = count + 9, size = heads * head_dim;
    std::vector<float> qkv = floats(rows * 3 * size), out(rows * size);
    std::vector<Task> tasks = {{{0, 1}, {{0, 1}, {1, 8}, {9, count}}, {0, 0}, 0},
                               {{1, 8}, {{1, 8}, {0, 0}, {0, 0}}, {0, 0}, 0}};
    if (count > 0) tasks.push_back({{9, count}, {{0, 1}, {1, 8}, {0, 0}}, {9, count}, window});
    bandrank_attend(qkv.data(), qkv.data() + size, qkv.data() + 2 * size, 3 * size, heads, head_dim, tasks.data(),
                    (int64_t)tasks.size(), out.data());
}

}  // namespace

int main() {
    for (int64_t rows : {0, 1, 5, 6, 7, 96, 97, 131}) {
        try_layers(rows, 16, 16);
        try_layers(rows, 48, 80);
    }
    for (int64_t head_dim : {16, 32, 48, 256})
        for (int64_t count : {0, 1, 3, 4, 15, 16, 17, 33, 128})
            for (int64_t window : {0, 1, 4, 500}) try_attention(2, head_dim, count, window);
    std::puts("clean");
}
