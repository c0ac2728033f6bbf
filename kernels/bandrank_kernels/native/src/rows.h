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

// The bytes of a row, whose range is divided into 255 equal steps and contains zero. `smooth` (n numbers, or null) is
// multiplied in first. NaN or infinity in the row make the scale NaN, so that they reach everything made of the row.
inline Quantisation quantise(const float* x, const float* smooth, int64_t n, uint8_t* bytes) {
    Floats low{}, high{}, poison{};
    auto at = [&](int64_t i) {
        Floats v = load<Floats>(x + i);
        return smooth ? v * load<Floats>(smooth + i) : v;
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
    Floats offset = all((float)zero + 0.5f);
    for (int64_t i = 0; i < n; i += LANES) {
        Floats shifted = smaller(larger(at(i) * inverse + offset, Floats{}), all(255.0f));
        store(bytes + i, __builtin_convertvector(to_ints(shifted), Bytes));
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
