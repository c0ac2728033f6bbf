// Vectors of one machine register in GCC's and Clang's vector extension, and the product that int8 layers are made of.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AMXINT8__)  // what Clang called them before it took GCC's names
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#else
#error "the kernels need AVX2, or Arm's dot products"
#endif

namespace bandrank {

#if defined(__AMX_INT8__)
constexpr int LANES = 16, REGISTERS = 32;  // numbers of 32 bits in a register
constexpr int TILE_VECTORS = 4, TILE_ROWS = 32;  // two tiles below each other, and two beside each other twice
#elif defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
constexpr int TILE_VECTORS = 4, TILE_ROWS = 6;  // 24 accumulators
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
constexpr int TILE_VECTORS = 2, TILE_ROWS = 6;  // 12 accumulators
#else
constexpr int LANES = 4, REGISTERS = 32;
constexpr int TILE_VECTORS = 4, TILE_ROWS = 4;  // 16 accumulators, besides the rows and weights that a step multiplies
#endif
constexpr int PANEL = LANES * TILE_VECTORS;  // outputs of a weight matrix that are stored together

// A number of a quantised row, LOWEST .. LOWEST + 255, and how many of them a lane multiplies at once. Arm multiplies signed
// bytes. On x86 without VNNI they are kept in 16 bits: vpmaddubsw, which takes bytes, saturates, and vpmaddwd does not.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
typedef uint8_t Level;
constexpr int GROUP = 4, LOWEST = 0;
#elif defined(__AVX2__)
typedef uint16_t Level;
constexpr int GROUP = 2, LOWEST = 0;
#else
typedef int8_t Level;
constexpr int GROUP = 4, LOWEST = -128;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef Level Levels __attribute__((vector_size(LANES * sizeof(Level))));

// Lets the other thread of the processor's core run while this one only waits.
inline void relax() {
#if defined(__AVX2__)
    _mm_pause();
#else
    asm volatile("isb");  // longer than `yield`, which does nothing on most
#endif
}

template <class Vector, class Number>
inline Vector load(const Number* from) {
    Vector result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

template <class Vector, class Number>
inline void store(Number* to, Vector what) {
    std::memcpy(to, &what, sizeof what);
}

// Sets each vector to zero by itself. An array that is initialised as a whole stays in memory, not in registers.
template <class Vector>
inline void clear(Vector& vector) {
    vector = Vector{};
}
template <class Vectors, int COUNT>
inline void clear(Vectors (&vectors)[COUNT]) {
#pragma GCC unroll 32
    for (Vectors& each : vectors) clear(each);
}

inline Floats all(float value) { return Floats{} + value; }
inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Ints to_ints(Floats x) { return __builtin_convertvector(x, Ints); }  // towards zero

// y if either is not a number. With AVX-512, g++ makes a comparison and a choice of some `x < y ? x : y`.
#if defined(__AVX512F__)
inline Floats smaller(Floats x, Floats y) { return (Floats)_mm512_min_ps((__m512)x, (__m512)y); }
inline Floats larger(Floats x, Floats y) { return (Floats)_mm512_max_ps((__m512)x, (__m512)y); }
#else
inline Floats smaller(Floats x, Floats y) { return x < y ? x : y; }
inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }
#endif

// Numbers that are not negative as levels; those above 255 become the highest.
inline Levels to_levels(Ints x) { return __builtin_convertvector((x > 255 ? Ints{} + 255 : x) + LOWEST, Levels); }

// The same for four registers, one after the other.
inline void store_levels(Level* to, const Ints (&x)[4]) {
#if defined(__AVX512BW__)
    Ints order;  // of groups of four bytes, which packing orders by quarters of registers
    for (int i = 0; i < LANES; ++i) order[i] = 4 * (i % 4) + i / 4;
    __m512i low = _mm512_packus_epi32((__m512i)x[0], (__m512i)x[1]);
    __m512i high = _mm512_packus_epi32((__m512i)x[2], (__m512i)x[3]);
    store(to, (Ints)_mm512_permutexvar_epi32((__m512i)order, _mm512_packus_epi16(low, high)));
#elif defined(__AVX2__)
    auto shorts = [&](int i) {  // of two registers, which packing orders by halves
        __m256i halves = _mm256_packus_epi32((__m256i)x[i], (__m256i)x[i + 1]);
        return _mm256_min_epu16(_mm256_permute4x64_epi64(halves, 0xd8), _mm256_set1_epi16(255));
    };
    __m256i low = shorts(0), high = shorts(2);
    if constexpr (sizeof(Level) == 2) {
        store(to, low);
        store(to + 2 * LANES, high);
    } else {
        store(to, _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8));
    }
#else
    auto bytes = [&](int i) {
        int16x8_t shorts = vcombine_s16(vqmovn_s32((int32x4_t)x[i]), vqmovn_s32((int32x4_t)x[i + 1]));
        return vqmovn_s16(vaddq_s16(shorts, vdupq_n_s16(LOWEST)));
    };
    store(to, vcombine_s8(bytes(0), bytes(2)));
#endif
}

// The lanes of two registers with these numbers; those of the second follow those of the first. One instruction, since the
// compiler knows the numbers.
inline Floats shuffle(Floats a, Floats b, Ints order) {
#if defined(__clang__)
    Floats result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) result[lane] = order[lane] < LANES ? a[order[lane]] : b[order[lane] - LANES];
    return result;
#else
    return __builtin_shuffle(a, b, order);
#endif
}

// Sums, minima and maxima over the lanes, always in the same order: halves, quarters, and so on.
template <int WIDTH = LANES / 2, class Combine>
inline float across(Floats x, Combine combine) {
    Ints other;
    for (int lane = 0; lane < LANES; ++lane) other[lane] = (lane + WIDTH) % LANES;
    Floats combined = combine(x, shuffle(x, x, other));
    if constexpr (WIDTH > 1)
        return across<WIDTH / 2>(combined, combine);
    else
        return combined[0];
}
inline float sum(Floats x) { return across(x, [](Floats a, Floats b) { return a + b; }); }
inline float lowest(Floats x) { return across(x, smaller); }
inline float highest(Floats x) { return across(x, larger); }

// Transposes LANES vectors of LANES numbers: lane j of vector i becomes lane i of vector j.
template <int STEP = 1>
inline void transpose(Floats* rows) {
    Ints low, high;  // lanes of a pair of rows, of which the second has LANES .. 2 * LANES - 1
    for (int lane = 0; lane < LANES; ++lane) {
        low[lane] = lane & STEP ? LANES + lane - STEP : lane;
        high[lane] = lane & STEP ? LANES + lane : lane + STEP;
    }
    for (int i = 0; i < LANES; ++i) {
        if (i & STEP) continue;
        Floats a = rows[i], b = rows[i + STEP];
        rows[i] = shuffle(a, b, low);
        rows[i + STEP] = shuffle(a, b, high);
    }
    if constexpr (2 * STEP < LANES) transpose<2 * STEP>(rows);
}

// What is multiplied: levels with signed bytes, or bfloat16 numbers.
enum class Of { BYTES, BF16 };

#if defined(__AVX512BF16__)
constexpr bool HAS_BF16 = true;
#else
constexpr bool HAS_BF16 = false;
#endif

// GROUP weights of each lane, as add_products takes them.
inline Ints load_weights(const int8_t* from) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
    return (Ints)_mm256_cvtepi8_epi16(load<__m128i>(from));
#else
    return load<Ints>(from);
#endif
}

// Each lane of `total` plus the products of its GROUP numbers of x with its GROUP weights, which is exact; or, as float32
// numbers, plus those of two in bfloat16.
template <Of OF = Of::BYTES>
inline Ints add_products(Ints total, Ints x, Ints w) {
#if defined(__AVX512BF16__)
    if constexpr (OF == Of::BF16) return (Ints)_mm512_dpbf16_ps((__m512)total, (__m512bh)x, (__m512bh)w);
#endif
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)x, (__m512i)w);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)x, (__m256i)w);
#elif defined(__AVX2__)
    return total + (Ints)_mm256_madd_epi16((__m256i)x, (__m256i)w);
#else
    return (Ints)vdotq_s32((int32x4_t)total, (int8x16_t)x, (int8x16_t)w);
#endif
}

// exp(x) for x <= 0, to two units in the last place near zero; minus infinity gives zero.
#if defined(__AVX512DQ__)
constexpr float LOG2_E = 1.44269504f;

// Minimax polynomials for 2^f over 0 <= f < 1, with relative errors of at most 7e-8 and 7e-5.
constexpr float EXACT_POWER[] = {0.0018775766075f, 0.0089893402543f, 0.055826317916f,
                                 0.24015361709f,   0.69315307319f,   0.99999992506f};
constexpr float SHORT_POWER[] = {0.078024551055f, 0.22606714276f, 0.69583352811f, 0.99992521855f};

// 2^t for t <= 0, as 2^floor(t) * 2^f. Zero below -126: products with subnormal numbers take long, and biases that fall
// with distance make many such weights.
template <size_t COUNT>
inline Floats power_of_two(Floats t, const float (&coefficients)[COUNT]) {
    Floats f = (Floats)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEG_INF), y = all(coefficients[0]);
    for (size_t i = 1; i < COUNT; ++i) y = y * f + coefficients[i];
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)t, (__m512)all(-126.0f), _CMP_NLT_UQ);  // NaN stays NaN
    return (Floats)_mm512_maskz_scalef_ps(normal, (__m512)y, (__m512)t);
}
inline Floats exp_of_negative(Floats x) { return power_of_two(x * LOG2_E, EXACT_POWER); }
#else
// Cody & Waite's reduction and a polynomial of degree 6; zero below -87.
inline Floats exp_of_negative(Floats x) {
    Floats clipped = larger(all(-87.0f), x);  // NaN stays NaN
    Ints power = to_ints(clipped * 1.44269504f - 0.5f);  // nearest, as x <= 0
    Floats n = to_floats(power);
    Floats r = clipped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats y = all(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    Floats scaled = y * (Floats)((power + 127) << 23);
    return x < all(-87.0f) ? Floats{} : scaled;
}
#endif

}  // namespace bandrank
