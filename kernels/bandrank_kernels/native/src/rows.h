// Operations on one row: quantisation, LayerNorm, GELU. Every row is computed by itself and in one order, so that its
// numbers do not depend on the rows beside it.
#pragma once
#include <algorithm>
#include <cmath>
#include <iterator>

#include "words.h"

namespace bandrank {

constexpr int CHAINS = 4;  // of dependent operations that run side by side

// A row x of n numbers as levels: x = scale * (level - zero), to half a step.
struct Quantisation {
    float scale;
    int32_t zero;
};

// An input with much larger numbers than the others would make the steps of all of them coarse. It is kept as m bytes, the
// j-th of which is floor((x / step + 1/2 + j) / m): together they are x / step to the nearest, by Hermite's identity, and
// the steps need to reach no further than x / m (outlier channel splitting, Zhao et al. 2019, arXiv 1901.09504).
struct Split {
    int64_t copies;          // bytes of a row after those of its inputs: the second and later ones, j > 0
    const int32_t* sources;  // (copies,) the input of each
    const float* shares;     // (inputs + copies,) 1 / m of each byte, or null without copies
    const float* offsets;    // (inputs + copies,) (1/2 + j) / m
};

// The levels of a row of n inputs, whose range is divided into 255 equal steps and contains zero. NaN or infinity in the
// row makes the scale NaN, and so everything computed from the row.
inline Quantisation quantise(const float* x, const Split& split, int64_t n, Level* bytes) {
    Floats low[CHAINS], high[CHAINS], poison[CHAINS];
    clear(low);
    clear(high);
    clear(poison);
    auto at = [&](int64_t i) {
        Floats v = load<Floats>(x + i);
        return split.shares ? v * load<Floats>(split.shares + i) : v;
    };
    auto meet = [&](int chain, Floats v) {
        low[chain] = smaller(v, low[chain]);
        high[chain] = larger(v, high[chain]);
        poison[chain] += v * 0.0f;
    };
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
        for (int chain = 0; chain < CHAINS; ++chain) meet(chain, at(i + chain * LANES));
    for (; i < n; i += LANES) meet(0, at(i));
    for (int chain = 1; chain < CHAINS; ++chain) {
        low[0] = smaller(low[chain], low[0]);
        high[0] = larger(high[chain], high[0]);
        poison[0] += poison[chain];
    }
    float least = lowest(low[0]), range = highest(high[0]) - least;
    float step = range > 0.0f ? range / 255.0f : 1.0f, inverse = 1.0f / step;
    // 255 if this is not a number, as in rows with an infinity, or if the range is too small to be divided.
    int32_t zero = (int32_t)std::min(255.0f, -least * inverse + 0.5f);
    // Above -1, so that truncation leaves nothing negative.
    auto shifted = [&](int64_t i, Floats v) {
        Floats offset = split.shares ? load<Floats>(split.offsets + i) : all(0.5f);
        return to_ints(v * inverse + (offset + (float)zero));
    };
    for (i = 0; i + 4 * LANES <= n; i += 4 * LANES) {
        Ints four[4];
        for (int part = 0; part < 4; ++part) four[part] = shifted(i + part * LANES, at(i + part * LANES));
        store_levels(bytes + i, four);
    }
    for (; i < n; i += LANES) store(bytes + i, to_levels(shifted(i, at(i))));
    for (i = 0; i < split.copies; i += LANES) {
        Floats v;
        for (int lane = 0; lane < LANES; ++lane) v[lane] = x[split.sources[i + lane]];
        store(bytes + n + i, to_levels(shifted(n + i, v * load<Floats>(split.shares + n + i))));
    }
    return {step + sum(poison[0]), zero + LOWEST};
}

#if defined(__AVX512BF16__)
// A row of n inputs, rounded to bfloat16; zeros follow the last one, up to a whole register.
inline void round_to_bf16(const float* x, int64_t n, Level* bytes) {
    for (int64_t i = 0; i < n; i += 2 * LANES) store((char*)bytes + 2 * i, TwoBf16::along(x, i, n));
}
#endif

// The sum of a function of each LANES numbers of a row.
template <class Function>
inline float sum_over(int64_t n, Function of) {
    Floats sums[CHAINS];
    clear(sums);
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
        for (int chain = 0; chain < CHAINS; ++chain) sums[chain] += of(i + chain * LANES);
    for (; i < n; i += LANES) sums[0] += of(i);
    for (int chain = 1; chain < CHAINS; ++chain) sums[0] += sums[chain];
    return sum(sums[0]);
}

// A LayerNorm (Ba et al. 2016) or, where rows are not centred, an RMSNorm (Zhang & Sennrich 2019). `bias` may be null.
struct Norm {
    const float *weight, *bias;
    float eps;
    int32_t centred = 1;
};

// out = the norm of x over n numbers. They are centred less the first one: of numbers that are nearly equal, the mean would
// be rounded by as much as they differ.
inline void normalise(const float* x, const Norm& norm, int64_t n, float* out) {
    const float first = norm.centred ? x[0] : 0.0f;
    auto at = [=](int64_t i) { return load<Floats>(x + i) - first; };
    const float mean = norm.centred ? sum_over(n, at) / n : 0.0f;
    auto centred = [=](int64_t i) { return at(i) - mean; };
    const float variance = sum_over(n, [=](int64_t i) { return centred(i) * centred(i); }) / n;
    const float inverse = 1.0f / std::sqrt(variance + norm.eps);
    for (int64_t i = 0; i < n; i += LANES) {
        Floats y = centred(i) * inverse * load<Floats>(norm.weight + i);
        store(out + i, norm.bias ? y + load<Floats>(norm.bias + i) : y);
    }
}

// Rows of n numbers, `stride` numbers apart, to be taken by their `numbers`, or one after the other where it is null.
struct Addend {
    const float* rows;
    const int64_t* numbers;
    int64_t num_rows, stride;
};

// out: rows `begin` to `end` of the norm of a sum of addends, added in order. False if a number is outside its table.
inline bool norm_of_sum(const Addend* addends, int64_t count, const Norm& norm, int64_t begin, int64_t end, int64_t n,
                        float* out) {
    constexpr int64_t AHEAD = 3, LINE = 16;  // rows of the first table; numbers of a cache line
    for (int64_t row = begin; row < end; ++row, out += n) {
        const int64_t later = addends->numbers && row + AHEAD < end ? addends->numbers[row + AHEAD] : -1;
        if (0 <= later && later < addends->num_rows)
            for (int64_t i = 0; i < n; i += LINE) __builtin_prefetch(addends->rows + later * addends->stride + i);
        for (const Addend* each = addends; each < addends + count; ++each) {
            const int64_t number = each->numbers ? each->numbers[row] : row;
            if (number < 0 || number >= each->num_rows) return false;
            const float* from = each->rows + number * each->stride;
            for (int64_t i = 0; i < n; i += LANES) {
                const Floats x = load<Floats>(from + i);
                store(out + i, each == addends ? x : load<Floats>(out + i) + x);
            }
        }
        normalise(out, norm, n, out);
    }
    return true;
}

// GELU in its erf form, x * Phi(x), to 3e-5 of the larger of 1 and the result.
#if defined(__AVX512F__)
// max(0, x) - GELU(x), which is |x| * Phi(-|x|), and past LIMIT, where it falls from 2e-5, what it is there. Each multiple of
// 1 / PER_UNIT has a parabola through it and the ends of its interval: with their coefficients in registers, GELU takes half as
// long as with the polynomial below.
struct BelowMax {
    static constexpr float LIMIT = 4.5f, PER_UNIT = (2 * LANES - 1) / LIMIT;
    alignas(64) float powers[3][2 * LANES];  // the coefficients of 1, |x| and x^2

    BelowMax() {
        auto below = [](double size) { return size * std::erfc(size * std::sqrt(0.5)) / 2; };
        for (int i = 0; i < 2 * LANES; ++i) {
            const double middle = i / (double)PER_UNIT, half = 0.5 / PER_UNIT;
            const double before = below(middle - half), at = below(middle), after = below(middle + half);
            const double slope = (after - before) / (2 * half), bend = (after - 2 * at + before) / (2 * half * half);
            powers[0][i] = (float)(at - slope * middle + bend * middle * middle);
            powers[1][i] = (float)(slope - 2 * bend * middle);
            powers[2][i] = (float)bend;
        }
    }

    Floats operator()(Floats size) const {
        constexpr float WHOLE = 8388608.0f;  // 2^23: the last bits of a sum with it are the nearest whole number
        const Floats bounded = smaller(size, all(LIMIT));
        const __m512i interval = (__m512i)(bounded * PER_UNIT + WHOLE);
        auto power = [&](int i) {
            return (Floats)_mm512_permutex2var_ps(_mm512_load_ps(powers[i]), interval, _mm512_load_ps(powers[i] + LANES));
        };
        return (power(2) * bounded + power(1)) * bounded + power(0);
    }
};
inline const BelowMax below_max;

inline Floats gelu(Floats x) {
    return larger(all(0.0f), x) - below_max((Floats)((Ints)x & 0x7fffffff));  // NaN stays NaN
}
#else
// A minimax polynomial in x^2 for (Phi(x) - 1/2) / x over |x| <= 4.4.
inline Floats gelu(Floats x) {
    constexpr float LIMIT = 4.4f;
    constexpr float coefficients[] = {0.0027541758749f, -0.0078841818394f, 0.0109878268742f,
                                      -0.0159769882317f, 0.0268021956067f, -0.0400892345646f,
                                      0.0552505208039f, -0.0786123131065f, 0.1604044199080f};
    Floats bounded = larger(all(-LIMIT), x), clipped = smaller(all(LIMIT), bounded);  // NaN stays NaN
    Floats t = clipped * clipped * (2.0f / (LIMIT * LIMIT)) - 1.0f, y = all(coefficients[0]);
    for (size_t i = 1; i < std::size(coefficients); ++i) y = y * t + coefficients[i];
    return bounded * (clipped * y + 0.5f);
}
#endif

inline Floats sigmoid(Floats x) {
    const Floats e = exp_of_negative(x < 0.0f ? x : -x);  // of -|x|, which does not overflow
    return (x < 0.0f ? e : all(1.0f)) / (e + 1.0f);
}

inline Floats silu(Floats x) { return x * sigmoid(x); }

// GELU in its tanh form, x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks & Gimpel 2016).
inline Floats gelu_tanh(Floats x) { return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)); }

}  // namespace bandrank
