// Rows of Q, K and V in shared memory: D/8 pieces of 16 bytes each, permuted within 8 rows so that the lanes of one read
// hit all banks once. Layouts repeat after 8 rows: row 8 b + r is row r of `rows + 8 b (D/8)`.

// The index of a piece of a row of Q or K that is read as `staged_slices` does.
template <int D>
__device__ __forceinline__ int key_index(int row, int piece) {
  return (row * (D / 8) + piece) ^ (D == 64 ? (row & 1) << 2 : 0);
}

// The index of a piece of a row of Q or K that is read as matrices of 8 rows by 8 numbers.
template <int D>
__device__ __forceinline__ int matrix_index(int row, int piece) {
  return row * (D / 8) + (piece ^ (D == 64 ? row & 7 : row >> 1 & 3));
}

// The index of a piece of a row of V that is read as `staged_segment` does.
template <int D>
__device__ __forceinline__ int value_index(int row, int piece) {
  return (row * (D / 8) + piece) ^ ((row >> 1 & 3) << 1);
}

// The part of a row of Q or K that this lane holds.
template <int D>
__device__ __forceinline__ Slices<D> staged_slices(const uint4* rows, int row) {
  Slices<D> loaded;
#pragma unroll
  for (int i = 0; i < D / 32; i++) loaded.slice[i] = rows[key_index<D>(row, 4 * i + threadIdx.x % 4)];
  return loaded;
}

// The part of a row of V that this lane holds.
template <int D>
__device__ __forceinline__ Segment<D> staged_segment(const uint4* rows, int row) {
  const int g = threadIdx.x % 32 / 4;
  if constexpr (D == 32) {
    const uint2 x = reinterpret_cast<const uint2*>(rows + value_index<D>(row, g / 2))[g % 2];
    return {{x.x, x.y}};
  } else {
    const uint4 x = rows[value_index<D>(row, g)];
    return {{x.x, x.y, x.z, x.w}};
  }
}
