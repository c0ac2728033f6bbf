// Rotary positions (Su et al. 2021, arXiv 2104.09864).
#pragma once
#include "rows.h"

namespace bandrank {

// Turns queries and keys of rows in place; numbers i and i + head_dim / 2 of a head are a pair. They may be normed first.
struct Turn {
    int64_t heads, head_dim;   // of queries and keys together
    const int64_t* positions;  // of all rows
    const float *cosines, *sines;  // (more than the largest position, head_dim / 2)
    const float* norms = nullptr;  // (heads, head_dim) weights of each head's RMSNorm, whose head_dim is whole registers
    float eps = 0.0f;

    // rows: from row `first` on, `stride` numbers apart.
    void operator()(float* rows, int64_t stride, int64_t first, int64_t count) const {
        const int64_t half = head_dim / 2;
        for (int64_t row = 0; row < count; ++row) {
            const float *c = cosines + positions[first + row] * half, *s = sines + positions[first + row] * half;
            for (int64_t head = 0; head < heads; ++head) {
                float *left = rows + row * stride + head * head_dim, *right = left + half;
                if (norms) normalise(left, {norms + head * head_dim, nullptr, eps, 0}, head_dim, left);
                int64_t i = 0;
                for (; i + LANES <= half; i += LANES) {
                    const Floats a = load<Floats>(left + i), b = load<Floats>(right + i);
                    const Floats cosine = load<Floats>(c + i), sine = load<Floats>(s + i);
                    store(left + i, a * cosine - b * sine);
                    store(right + i, b * cosine + a * sine);
                }
                for (; i < half; ++i) {
                    const float a = left[i], b = right[i];
                    left[i] = a * c[i] - b * s[i];
                    right[i] = b * c[i] + a * s[i];
                }
            }
        }
    }
};

}  // namespace bandrank
