// Kernels without tensor cores: a block computes 31 rows of one candidate and, as row 31, its [CLS]. Four lanes share a
// row, each with a quarter of its numbers, in float.

constexpr int kQuadRows = 31;
constexpr int kQuadThreads = 4 * (kQuadRows + 1);

// from: aligned to 16 bytes, as are all quarters of a row.
template <class T, int N>
__device__ __forceinline__ void load_numbers(float (&numbers)[N], const T* from) {
  constexpr int kAtOnce = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < N / kAtOnce; i++) {
    const uint4 word = reinterpret_cast<const uint4*>(from)[i];
    const T* loaded = reinterpret_cast<const T*>(&word);
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) numbers[i * kAtOnce + j] = float(loaded[j]);
  }
}

template <class T, int N>
__device__ __forceinline__ void store_numbers(T* to, const float (&numbers)[N], float factor) {
  constexpr int kAtOnce = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < N / kAtOnce; i++) {
    uint4 word;
    T* stored = reinterpret_cast<T*>(&word);
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) stored[j] = T(numbers[i * kAtOnce + j] * factor);
    reinterpret_cast<uint4*>(to)[i] = word;
  }
}

template <int N>
__device__ __forceinline__ float dot(const float (&a)[N], const float (&b)[N]) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < N; i++) sum = fmaf(a[i], b[i], sum);
  return sum;
}

template <int N>
__device__ __forceinline__ void add_scaled(float (&sums)[N], float factor, const float (&numbers)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) sums[i] = fmaf(factor, numbers[i], sums[i]);
}

// Adds up over the four lanes of a row, while other rows of the warp may be elsewhere.
__device__ __forceinline__ float row_sum(float x) {
  const unsigned lanes = 0xfu << (threadIdx.x % 32 / 4 * 4);
  x += __shfl_xor_sync(lanes, x, 1);
  return x + __shfl_xor_sync(lanes, x, 2);
}
