// mma.sync.m16n8k16 and m16n8k8, row.col, 16-bit factors, float sums: a product of a whole warp. ldmatrix.x4, which loads for it.
//
// With lane = 4 g + t, of A (16 x K), B (K x 8) and C (16 x 8), by the PTX manual's section on matrix fragments:
//   A register r: row g + 8 (r % 2), columns 2t + 8 (r / 2) and the next     B register r: rows 2t + 8 r and the next, column g
//   C element i: row g + 8 (i / 2), column 2t + i % 2
#pragma once
#include "intrinsics.h"

namespace cuda_on_cpu {

template <int K>
struct Factors {
  float a[K / 2], b[K / 4];  // two to a register
};

template <class T>
void unpack(float* pair, uint32_t word) {
  T halves[2];
  memcpy(halves, &word, 4);
  pair[0] = halves[0];
  pair[1] = halves[1];
}

template <class T, int K>
void mma(float (&c)[4], const uint32_t (&a)[K / 4], const uint32_t (&b)[K / 8], int line) {
  Factors<K> mine;
  for (int r = 0; r < K / 4; r++) unpack<T>(mine.a + 2 * r, a[r]);
  for (int r = 0; r < K / 8; r++) unpack<T>(mine.b + 2 * r, b[r]);
  struct Tile { float at[4]; };
  const Tile sums = exchange(kAllLanes, mine, line, [&c](auto slot) {
    const int g = lane() / 4, t = lane() % 4;
    Tile tile{{c[0], c[1], c[2], c[3]}};
    for (int half = 0; half < K / 8; half++)
      for (int quad = 0; quad < 4; quad++) {
        const Factors<K>&rows = slot(4 * g + quad), &left = slot(8 * t + quad), &right = slot(8 * t + 4 + quad);
        for (int k = 0; k < 2; k++)
          for (int i = 0; i < 4; i++)
            tile.at[i] += rows.a[4 * half + 2 * (i / 2) + k] * (i % 2 ? right : left).b[2 * half + k];
      }
    return tile;
  });
  memcpy(c, sums.at, sizeof c);
}

// A lane's row is read when it arrives, so that a row that another lane has not copied yet shows.
inline uint4 load_matrices(const uint4* row, int line) {
  return exchange(kAllLanes, *row, line, [](auto slot) {
    unsigned words[4];
    for (int i = 0; i < 4; i++) {
      const uint4& from = slot(8 * i + lane() / 4);
      memcpy(words + i, reinterpret_cast<const char*>(&from) + 4 * (lane() % 4), 4);
    }
    return uint4{words[0], words[1], words[2], words[3]};
  });
}

inline uint4 load_transposed(const uint4* row, int line) {
  return exchange(kAllLanes, *row, line, [](auto slot) {
    unsigned words[4];
    for (int i = 0; i < 4; i++)
      for (int k = 0; k < 2; k++) {
        const uint4& from = slot(8 * i + 2 * (lane() % 4) + k);
        memcpy(reinterpret_cast<char*>(words + i) + 2 * k, reinterpret_cast<const char*>(&from) + 2 * (lane() / 4), 2);
      }
    return uint4{words[0], words[1], words[2], words[3]};
  });
}

}  // namespace cuda_on_cpu
