// Shared by all kernels: 16-bit numbers in pairs, exp2, products on tensor cores, reductions in a quad of lanes.
//
// The same text is compiled by NVRTC, nvcc and, for tests, g++ (CUDA_ON_CPU): only what needs inline PTX has two bodies.
// Tests break the lines that end with `@name`, to see that they notice (tests/emulation/README.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef CUDA_ON_CPU
#define DYNAMIC_SHARED(name) unsigned char* const name = cuda_on_cpu::shared_memory()
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

constexpr unsigned kAllLanes = 0xffffffffu;
// Stands in for minus infinity, whose difference with itself is NaN. exp2 of it is 0, whatever the scale.
[[maybe_unused]] constexpr float kHidden = -1e30f;

template <class T> struct IsBfloat16 { static constexpr bool value = false; };
template <> struct IsBfloat16<__nv_bfloat16> { static constexpr bool value = true; };

__device__ __forceinline__ int min_of(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int max_of(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int clamp(int x, int low, int high) { return max_of(low, min_of(x, high)); }

// Waits until the launches before this one have ended, and what they wrote can be read. A launch may begin before that
// (`Kernel.early`); on others, and before sm_90, there is nothing to wait for. Loads that are allowed to pass stores, such
// as __ldg, may pass this too: they are for what no launch writes.
__device__ __forceinline__ void wait_for_earlier_launches() {
#if !defined(CUDA_ON_CPU) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 2 ** x to 2 units in the last place; results below 2 ** -126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef CUDA_ON_CPU
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The logarithm to base 2 of a number from 2 ** -126 on, to 2 ** -22.
__device__ __forceinline__ float log2_fast(float x) {
#ifdef CUDA_ON_CPU
  return std::log2(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 1 / x to 1 unit in the last place.
__device__ __forceinline__ float reciprocal_fast(float x) {
#ifdef CUDA_ON_CPU
  return 1.f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Two numbers rounded to T in one register, `low` in the low half.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
#ifdef CUDA_ON_CPU
  const T pair[2] = {T(low), T(high)};
  unsigned word;
  memcpy(&word, pair, 4);
  return word;
#else
  unsigned word;
  if constexpr (IsBfloat16<T>::value)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#endif
}

// c += a b on tensor cores: a is 16 x 16, b is 16 x 8, c is 16 x 8, fragments as in the PTX manual.
template <class T>
__device__ __forceinline__ void mma_k16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                        unsigned b1) {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::mma<T, 16>(c, {a0, a1, a2, a3}, {b0, b1}, __LINE__);
#else
  if constexpr (IsBfloat16<T>::value)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// The same with half the depth: a is 16 x 8, b is 8 x 8.
template <class T>
__device__ __forceinline__ void mma_k8(float (&c)[4], unsigned a0, unsigned a1, unsigned b0) {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::mma<T, 8>(c, {a0, a1}, {b0}, __LINE__);
#else
  if constexpr (IsBfloat16<T>::value)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
  else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
#endif
}

#ifndef CUDA_ON_CPU
__device__ __forceinline__ unsigned shared_address(const void* generic) {
  return static_cast<unsigned>(__cvta_generic_to_shared(generic));
}
#endif

// Four matrices of 8 x 8 16-bit numbers from shared memory. Lane 8 i + r gives the address of row r of matrix i, and lane
// 4 g + t gets numbers 2t and 2t + 1 of row g of each.
__device__ __forceinline__ uint4 load_matrices(const uint4* row) {
#ifdef CUDA_ON_CPU
  return cuda_on_cpu::load_matrices(row, __LINE__);
#else
  uint4 loaded;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w) : "r"(shared_address(row)) : "memory");
  return loaded;
#endif
}

// The same, each matrix transposed: lane 4 g + t gets number g of rows 2t and 2t + 1.
__device__ __forceinline__ uint4 load_transposed(const uint4* row) {
#ifdef CUDA_ON_CPU
  return cuda_on_cpu::load_transposed(row, __LINE__);
#else
  uint4 loaded;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w) : "r"(shared_address(row)) : "memory");
  return loaded;
#endif
}

// The largest of three numbers if one of them is positive, else any of them: bits of positive floats order as integers
// do, of which sm_90 compares three at once.
__device__ __forceinline__ float max_if_positive(float a, float b, float c) {
#ifdef CUDA_ON_CPU
  return fmaxf(a, fmaxf(b, c));
#else
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
#endif
}

// The four lanes 4 g .. 4 g + 3 hold one row of a score tile between them.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Returns the same bits in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);  // @lanes
  return x;
}
