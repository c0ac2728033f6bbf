// Operations on one row: quantisation, LayerNorm, GELU. Every row is computed by itself and in one order, so that its
// numbers do not depend on the rows beside it.
#pragma once
#include <algorithm>
#include <cmath>

#include "simd.h"

namespace bandrank {

// A row x of n numbers as bytes: x = scale * (byte - zero), to half a step.
struct Quantisation {
    float scale;
    int32_t zero;
};

// An input of much larger numbers than the others would make the steps of all of them coarse. It is kept as m bytes, the
// j-th of which is floor((x / step + 1/2 + j) / m): together they are x / step to the nearest, by Hermite's identity, and
// the steps need to reach no further than x / m (outlier channel splitting, Zhao et al. 2019, arXiv 1901.09504).
struct Split {
    int64_t copies;          // bytes of a row behind those of its inputs: the second and later ones, j > 0
    const int32_t* sources;  // (copies,) the input of each
    const float* shares;     // (inputs + copies,) 1 / m of each byte, or null without copies
    const float* offsets;    // (inputs + copies,) (1/2 + j) / m
};

// The bytes of a row of n inputs, whose range is divided into 255 equal steps and contains zero. NaN or infinity in the
// row make the scale NaN, so that they reach everything made of the row.
inline Quantisation quantise(const float* x, const Split& split, int64_t n, uint8_t* bytes) {
    Floats low{}, high{}, poison{};
    auto at = [&](int64_t i) {
        Floats v = load<Floats>(x + i);
        return split.shares ? v * load<Floats>(split.shares + i) : v;
    };
    for (int64_t i = 0; i < n; i += LANES) {
        Floats v = at(i);
        low = smaller(v, low);
        high = larger(v, high);
        poison += v * 0.0f;
    }
    float least = lowest(low), range = highest(high) - least;
    float step = range > 0.0f ? range / 255.0f : 1.0f, inverse = 1.0f / step;
    int32_t zero = (int32_t)(-least * inverse + 0.5f);
    auto keep = [&](int64_t i, Floats v) {
        Floats offset = (split.shares ? load<Floats>(split.offsets + i) : all(0.5f)) + (float)zero;
        Floats shifted = smaller(larger(v * inverse + offset, Floats{}), all(255.0f));
        store(bytes + i, __builtin_convertvector(to_ints(shifted), Bytes));
    };
    for (int64_t i = 0; i < n; i += LANES) keep(i, at(i));
    for (int64_t i = 0; i < split.copies; i += LANES) {
        Floats v;
        for (int lane = 0; lane < LANES; ++lane) v[lane] = x[split.sources[i + lane]];
        keep(n + i, v * load<Floats>(split.shares + n + i));
    }
    return {step + sum(poison), zero};
}

// out = LayerNorm(x) over n numbers (Ba et al. 2016). `bias` may be null.
inline void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* out) {
    Floats total{};
    for (int64_t i = 0; i < n; i += LANES) total += load<Floats>(x + i);
    float mean = sum(total) / n;
    Floats squares{};
    for (int64_t i = 0; i < n; i += LANES) {
        Floats d = load<Floats>(x + i) - mean;
        squares += d * d;
    }
    float inverse = 1.0f / std::sqrt(sum(squares) / n + eps);
    for (int64_t i = 0; i < n; i += LANES) {
        Floats y = (load<Floats>(x + i) - mean) * inverse * load<Floats>(weight + i);
        store(out + i, bias ? y + load<Floats>(bias + i) : y);
    }
}

// GELU in its erf form, x * Phi(x), to 5e-6: a polynomial for (Phi(x) - 1/2) / x in x^2 over |x| <= 5, fitted at
// Chebyshev's points.
inline Floats gelu(Floats x) {
    constexpr float coefficients[] = {-0.0011061240220f, 0.0032307442743f, -0.0039035216905f, 0.0050602159463f,
                                      -0.0101220766082f, 0.0169325396419f, -0.0236495640129f, 0.0313545726240f,
                                      -0.0403874404728f, 0.0515252202749f, -0.0702984333038f, 0.1413637548685f};
    Floats bounded = x < all(-5.0f) ? all(-5.0f) : x;  // NaN stays NaN
    Floats clipped = smaller(bounded, all(5.0f));
    Floats t = clipped * clipped * 0.08f - 1.0f, y = all(coefficients[0]);
    for (int i = 1; i < 12; ++i) y = y * t + coefficients[i];
    return bounded * (clipped * y + 0.5f);
}

}  // namespace bandrank
