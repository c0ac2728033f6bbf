// Attention of each [CLS] where the rows are keys and values at once (the absorbed last layer, README.md):
//
//   out[c, h] = sum_j softmax_j(scale query[c, h] . x[j]) x[j],   j over [CLS] of c, the rows of its query, the rows of c
//
//   T storage type, E hidden_size, H num_heads
//
// A block computes all heads over the keys of one tile, so that a row is read from memory once. The keys of a tile, in
// the order in which they are summed:
//
//   number  0 .. G-1   [CLS] and the query, in the candidate's first tile alone
//           G ..       the rows of the tile
//
// If a candidate has several tiles, each leaves a partial result of every head, in float: the maximum, the sum, two places
// that are not used, and E weighted sums.
// The last block merges them in the order of the tiles, so that the bits do not depend on which block is last.

constexpr int kPartialHeader = 4;  // floats before the weighted sums, which start at a 16-byte address

struct AbsorbedParams {
  const void* query;  // (num_candidates, H, E), 16-byte aligned
  const void* rows;   // (num_rows, E), row_stride numbers apart, each at a 16-byte address
  void* out;          // (num_candidates, H, E), 16-byte aligned
  const int4* tiles;  // one for each block: Tile, of candidates alone
  float* partials;    // (num_tiles, H, kPartialHeader + E) scratch, 16-byte aligned: of candidates with several tiles
  int* arrivals;      // one for each candidate, zero before a launch and after it
  long long row_stride;
  int num_heads;    // up to 16
  int hidden_size;  // a multiple of 8, up to 1024
  int tile_rows;
  float scale;  // times log2(e)
};

struct TileKeys {
  Tile tile;
  int globals, count;

  __device__ TileKeys(const Tile& tile, int tile_rows) : tile(tile) {
    globals = tile.index ? 0 : 1 + tile.query_rows;  // @globals
    count = globals + min_of(tile_rows, tile.num_rows - tile.begin);  // @count
  }

  __device__ __forceinline__ long long row(int number) const {
    return number < globals ? tile.global_row(number) : tile.first_row + tile.begin + number - globals;  // @key-row
  }
};

// The address of the tile's partial result of a head.
__device__ __forceinline__ float* partial_of(const AbsorbedParams& params, int tile_number, int head) {
  return params.partials + ((long long)tile_number * params.num_heads + head) * (kPartialHeader + params.hidden_size);
}

// Returns the same bits in every lane.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// A warp merges one head of the result.
// partials: `count` of them, `stride` floats apart. Read as volatile: other blocks wrote them, past this one's L1.
template <class T>
__device__ __forceinline__ void merge_head(T* out, const volatile float* partials, long long stride, int count,
                                           int hidden_size) {
  constexpr int kAtOnce = 8;  // numbers of a lane, to have as many reads under way
  const int lane = threadIdx.x % 32;
  float top = kHidden, sum = 0.f;
  for (int n = lane; n < count; n += 32) top = fmaxf(top, partials[n * stride]);
  top = warp_max(top);
  for (int n = lane; n < count; n += 32) sum += exp2_fast(partials[n * stride] - top) * partials[n * stride + 1];
  sum = warp_sum(sum);
  for (int first = lane; first < hidden_size; first += 32 * kAtOnce) {
    float value[kAtOnce] = {};
#pragma unroll 4
    for (int n = 0; n < count; n++) {
      const volatile float* partial = partials + n * stride;
      const float factor = exp2_fast(partial[0] - top);  // @merge-factor
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        if (first + 32 * i < hidden_size) value[i] += factor * partial[kPartialHeader + first + 32 * i];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++)
      if (first + 32 * i < hidden_size) out[first + 32 * i] = T(value[i] / sum);
  }
}

// Called by a block that has written the partial results of its tile and is done with its shared memory: the last block of
// the candidate writes the result.
template <class T>
__device__ __forceinline__ void arrive_and_merge(const AbsorbedParams& params, const Tile& tile, void* shared) {
  int* const before = static_cast<int*>(shared);
  int* const arrivals = params.arrivals + tile.candidate;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // after the barrier it covers what the other threads wrote
    *before = atomicAdd(arrivals, 1);
  }
  __syncthreads();
  if (*before != tile.num_tiles - 1) return;  // @last-tile
  __threadfence();
  const int first_tile = blockIdx.x - tile.index;  // @first-tile
  for (int head = threadIdx.x / 32; head < params.num_heads; head += blockDim.x / 32) {
    const long long index = (long long)tile.candidate * params.num_heads + head;
    merge_head(static_cast<T*>(params.out) + index * params.hidden_size, partial_of(params, first_tile, head),
               (long long)params.num_heads * (kPartialHeader + params.hidden_size), tile.num_tiles, params.hidden_size);
  }
  if (threadIdx.x == 0) *arrivals = 0;  // @arrivals so that a captured graph can be replayed
}
