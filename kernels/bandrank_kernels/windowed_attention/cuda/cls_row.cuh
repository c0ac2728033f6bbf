// The [CLS] row of a candidate sees all its rows, and these are spread over tiles. Each tile attends with [CLS] over its
// rows and leaves a partial result: (maximum, sum, D weighted values), all in float. The last one to finish merges them
// in the order of the tiles, so that the bits do not depend on which tile is last.

template <int D>
constexpr int kPartial = D + 2;  // floats

// A [CLS] row spread over a warp: lane i holds numbers i, i + 32, ...
template <int D>
struct ClsRow {
  float top, sum, value[D / 32];
};

// Writes the half (0: row g, 1: row g + 8) of `out` that is [CLS]: called by the four lanes that hold it.
template <int D>
__device__ __forceinline__ void store_partial(float* partial, const Output<D>& out, int half, float top, float sum) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < D / 8; j++) {
    partial[2 + 2 * t * (D / 8) + j] = out.column[j][2 * half];
    partial[2 + (2 * t + 1) * (D / 8) + j] = out.column[j][2 * half + 1];
  }
  if (t == 0) {
    partial[0] = top;
    partial[1] = sum;
  }
}

// partials: `count` of them, `stride` floats apart. Read as volatile: other blocks wrote them, past this one's L1.
template <int D>
__device__ __forceinline__ ClsRow<D> merge_partials(const volatile float* partials, long long stride, int count) {
  const int lane = threadIdx.x % 32;
  ClsRow<D> row;
  row.top = kHidden;
  row.sum = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) row.value[i] = 0.f;
  for (int n = 0; n < count; n++) row.top = fmaxf(row.top, partials[n * stride]);
  for (int n = 0; n < count; n++) {
    const volatile float* partial = partials + n * stride;
    const float factor = exp2_fast(partial[0] - row.top);  // @merge-factor
    row.sum += factor * partial[1];
#pragma unroll
    for (int i = 0; i < D / 32; i++) row.value[i] += factor * partial[2 + lane + 32 * i];
  }
  return row;
}

template <int D>
__device__ __forceinline__ void store_merged(float* partial, const ClsRow<D>& row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < D / 32; i++) partial[2 + lane + 32 * i] = row.value[i];
  if (lane == 0) {
    partial[0] = row.top;
    partial[1] = row.sum;
  }
}

template <class T, int D>
__device__ __forceinline__ void store_cls(const AttentionParams& params, int candidate, int head, const ClsRow<D>& row) {
  const int lane = threadIdx.x % 32;
  const long long index = (long long)candidate * params.num_heads + head;
#pragma unroll
  for (int i = 0; i < D / 32; i++) static_cast<T*>(params.out)[index * D + lane + 32 * i] = T(row.value[i] / row.sum);
  if (params.lse && lane == 0) params.lse[index] = row.top + log2f(row.sum);
}

template <int D>
__device__ __forceinline__ float* partial_of(const AttentionParams& params, int tile_number, int head) {
  return params.partials + ((long long)tile_number * params.num_heads + head) * kPartial<D>;
}

// Called by a warp whose lanes have written the partial of this tile: the last of the candidate's tiles writes the row.
template <class T, int D>
__device__ __forceinline__ void arrive_and_merge(const AttentionParams& params, const Tile& tile, int tile_number,
                                                 int head) {
  const int lane = threadIdx.x % 32;
  int* arrivals = params.arrivals + (long long)tile.candidate * params.num_heads + head;
  int before = 0;
  __syncwarp();
  if (lane == 0) {
    __threadfence();  // after the barrier it covers what the other lanes wrote
    before = atomicAdd(arrivals, 1);
  }
  before = __shfl_sync(kAllLanes, before, 0);
  if (before != tile.num_tiles - 1) return;  // @last-tile
  __threadfence();
  const float* first = partial_of<D>(params, tile_number - tile.index, head);
  const long long stride = (long long)params.num_heads * kPartial<D>;
  store_cls<T, D>(params, tile.candidate, head, merge_partials<D>(first, stride, tile.num_tiles));
  if (lane == 0) *arrivals = 0;  // @arrivals so that a captured graph can be replayed
}
