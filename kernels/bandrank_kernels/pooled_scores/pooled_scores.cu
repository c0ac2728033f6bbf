// Scores of pooled rows: a dense layer, its activation, and the product with one vector,
//
//   out[r] = constant + sum over j of vector[j] activation(bias[j] + sum over k of rows[r][k] weight[j][k])
//
// A block has 16 rows, and each of its warps 32 outputs of the layer, whose sums stay in registers until they are one number
// for each row. A product's sum may take its columns in any order that both factors share: of each 32, lane 4 g + t has
// columns 8 t .. 8 t + 7 of rows g and g + 8 and of every eighth output from g on, so that all loads are of 16 bytes.
// The order depends on the sizes alone.

constexpr int kRows = 16;
constexpr int kWarpOutputs = 32, kTiles = kWarpOutputs / 8;
constexpr int kDepth = 32;
constexpr int kAhead = 4;  // steps of kDepth whose loads are under way together
constexpr int kMostThreads = 384;

enum Activation { kTanh, kGelu, kRelu };

struct PooledParams {
  const void* rows;       // num_rows rows, row_stride numbers apart, each at a 16-byte address
  const void* weight;     // a row of `inputs` numbers for each thread of a block, contiguous, from a 16-byte address on
  const float* bias;      // a number for each row of the weight, as has the vector
  const float* vector;
  const float* constant;  // one number
  float* out;
  long long num_rows;
  long long row_stride;
  int inputs;             // a multiple of kDepth
};

template <int kActivation>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kActivation == kTanh) return tanhf(x);
  if constexpr (kActivation == kGelu) return 0.5f * x * (1.f + erff(x * 0.70710678f));
  return x < 0.f ? 0.f : x;  // NaN stays NaN
}

template <class T, int kActivation>
__global__ void __launch_bounds__(kMostThreads) pooled_scores(const __grid_constant__ PooledParams p) {
  DYNAMIC_SHARED(shared);
  float(*const sums)[kRows] = reinterpret_cast<float(*)[kRows]>(shared);  // of each warp
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const long long first = static_cast<long long>(blockIdx.x) * kRows;
  auto row = [&](int number) {
    const long long existing = first + number < p.num_rows ? first + number : p.num_rows - 1;
    return static_cast<const T*>(p.rows) + existing * p.row_stride + 8 * t;  // @stride
  };
  const T* const upper = row(g);
  const T* const lower = row(g + 8);
  const T* const weight = static_cast<const T*>(p.weight) + (warp * kWarpOutputs + g) * p.inputs + 8 * t;
  const int output = warp * kWarpOutputs + 2 * t;  // of a thread's first two sums of each tile
  float2 bias[kTiles], vector[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++) {
    bias[tile] = __ldg(reinterpret_cast<const float2*>(p.bias + output + 8 * tile));  // @bias
    vector[tile] = __ldg(reinterpret_cast<const float2*>(p.vector + output + 8 * tile));  // @vector
  }
  const float constant = __ldg(p.constant);

  float c[kTiles][4] = {};
  wait_for_earlier_launches();
  for (int first_k = 0; first_k < p.inputs; first_k += kAhead * kDepth) {
    uint4 a[kAhead], b[kAhead], w[kAhead][kTiles];
#pragma unroll
    for (int step = 0; step < kAhead; step++) {
      const int k = first_k + step * kDepth;
      const bool real = k < p.inputs;
      a[step] = real ? __ldcg(reinterpret_cast<const uint4*>(upper + k)) : uint4{};
      b[step] = real ? __ldcg(reinterpret_cast<const uint4*>(lower + k)) : uint4{};
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++)
        w[step][tile] = real ? __ldg(reinterpret_cast<const uint4*>(weight + 8 * tile * p.inputs + k)) : uint4{};
    }
#pragma unroll
    for (int step = 0; step < kAhead; step++)
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++) {
        const uint4 &upper_row = a[step], &lower_row = b[step], &output = w[step][tile];
        mma_k16<T>(c[tile], upper_row.x, lower_row.x, upper_row.y, lower_row.y, output.x, output.y);
        mma_k16<T>(c[tile], upper_row.z, lower_row.z, upper_row.w, lower_row.w, output.z, output.w);
      }
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = 0.f;  // of row g, then g + 8
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      sum = fmaf(vector[tile].x, activated<kActivation>(c[tile][2 * half] + bias[tile].x), sum);
      sum = fmaf(vector[tile].y, activated<kActivation>(c[tile][2 * half + 1] + bias[tile].y), sum);
    }
    const float whole = quad_sum(sum);  // @quad
    if (t == 0) sums[warp][g + 8 * half] = whole;
  }
  __syncthreads();  // @barrier

  const int number = threadIdx.x;
  if (number >= kRows || first + number >= p.num_rows) return;  // @rows
  float score = constant;
  for (int other = 0; other < static_cast<int>(blockDim.x) / 32; other++) score += sums[other][number];
  p.out[first + number] = score;
}
