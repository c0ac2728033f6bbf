// Words of 32 bits in the lanes of a register, and what they hold of the rows that attention multiplies.
#pragma once
#include <array>

#include "simd.h"

namespace bandrank {

#if defined(__AVX512BF16__)
// The numbers of two registers as bfloat16 numbers, one after the other.
inline Floats two_bf16(Floats first, Floats second) {
    return (Floats)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// The same, with the two of each lane beside each other.
inline Floats paired_bf16(Floats first, Floats second) {
    alignas(64) static constexpr auto order = [] {
        std::array<uint16_t, 2 * LANES> lanes{};
        for (int i = 0; i < 2 * LANES; ++i) lanes[i] = i % 2 * LANES + i / 2;
        return lanes;
    }();
    return (Floats)_mm512_permutexvar_epi16(_mm512_load_si512(order.data()), (__m512i)two_bf16(first, second));
}
#endif

// A word that is a float32 number.
struct OneFloat {
    static constexpr int64_t COUNT = 1;  // numbers in a word
    static constexpr bool ROUNDS = false;

    // A register of words: those of a row from number d on, times `scale`.
    static Floats along(const float* row, int64_t d, int64_t, float scale = 1.0f) { return load<Floats>(row + d) * scale; }
    // A register of words, each of numbers from COUNT rows.
    static Floats beside(const Floats (&rows)[COUNT]) { return rows[0]; }
    // Each lane of `total` plus the products of its word of x with a word that is the same for all.
    static Floats add_products(Floats total, Floats x, const float* word) { return total + x * *word; }
    // exp of a logit less the largest, times `scale` if words round numbers.
    static Floats weight(Floats below, float) { return exp_of_negative(below); }
};

#if defined(__AVX512BF16__)
// A word that is two bfloat16 numbers, whose products are summed in float32.
struct TwoBf16 {
    static constexpr int64_t COUNT = 2;
    static constexpr bool ROUNDS = true;

    // Zeros follow the last number of a row.
    static Floats along(const float* row, int64_t d, int64_t numbers, float scale = 1.0f) {
        const Floats second = d + LANES < numbers ? load<Floats>(row + d + LANES) : Floats{};
        return two_bf16(load<Floats>(row + d) * scale, second * scale);
    }
    static Floats beside(const Floats (&rows)[COUNT]) { return paired_bf16(rows[0], rows[1]); }
    static Floats add_products(Floats total, Floats x, const float* word) {
        int32_t both;
        std::memcpy(&both, word, sizeof both);
        return (Floats)_mm512_dpbf16_ps((__m512)total, (__m512bh)x, (__m512bh)_mm512_set1_epi32(both));
    }
    static Floats weight(Floats below, float scale) { return power_of_two(below * (LOG2_E * scale), SHORT_POWER); }
};
#endif

// The words of a row of numbers, in whole registers.
template <class Word>
inline int64_t words_of(int64_t numbers) {
    constexpr int64_t REGISTER = LANES * Word::COUNT;
    return (numbers + REGISTER - 1) / REGISTER * LANES;
}

// The rows that `count` rows take if COUNT of them are together.
template <class Word>
inline int64_t whole_words(int64_t count) {
    return (count + Word::COUNT - 1) / Word::COUNT * Word::COUNT;
}

}  // namespace bandrank
