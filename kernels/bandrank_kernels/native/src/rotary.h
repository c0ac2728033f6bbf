// Rotary positions (Su et al. 2021, arXiv 2104.09864).
#pragma once
#include "simd.h"

namespace bandrank {

// Turns all heads of `count` rows in place; from row to row there are `stride` numbers. Numbers i and i + head_dim / 2 of
// a head are a pair. cosines, sines: (positions, head_dim / 2).
inline void turn(float* rows, int64_t stride, int64_t count, int64_t heads, int64_t head_dim, const int64_t* positions,
                 const float* cosines, const float* sines) {
    const int64_t half = head_dim / 2;
    for (int64_t row = 0; row < count; ++row)
        for (int64_t head = 0; head < heads; ++head) {
            float *left = rows + row * stride + head * head_dim, *right = left + half;
            const float *c = cosines + positions[row] * half, *s = sines + positions[row] * half;
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

}  // namespace bandrank
