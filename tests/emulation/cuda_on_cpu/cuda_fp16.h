// __half: IEEE binary16, rounded to nearest, ties to even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct __half {
  uint16_t bits;

  __half() = default;
  __half(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    const uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
    word &= 0x7fffffffu;
    if (word > 0x7f800000u) {
      bits = 0x7fff;  // NaN
    } else if (word >= 0x47800000u) {
      bits = sign | 0x7c00u;  // 65536 and more
    } else if (word < 0x38800000u) {  // below 2**-14: a multiple of 2**-24
      bits = sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(std::fabs(value), 24)));
    } else {  // a carry out of the mantissa moves the exponent, up to infinity, as it should
      bits = sign | static_cast<uint16_t>((word - 0x38000000u + 0xfffu + ((word >> 13) & 1u)) >> 13);
    }
  }
  operator float() const { return table().value[bits]; }

 private:
  struct Table {
    float value[1 << 16];
    Table() {
      for (uint32_t bits = 0; bits < 1u << 16; bits++) {
        const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
        const float size = exponent == 31   ? (mantissa ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                           : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
        value[bits] = bits & 0x8000u ? -size : size;
      }
    }
  };
  static const Table& table() {
    static const Table all;
    return all;
  }
};

inline __half __float2half(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }
