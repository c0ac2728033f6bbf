// The absorbed last layer without tensor cores: for float32, and for cards before sm_80. A warp has a head, a lane has
// 16-byte pieces lane, lane + 32, ... of everything. All arithmetic is float32.
//
// The block copies 8 keys at a time to shared memory; each warp reads them there twice, for scores and for sums.

constexpr int kChunk = 8;  // keys
constexpr int kMostHeads = 16;

template <class T, int PIECES>
__global__ void __launch_bounds__(32 * kMostHeads, 1) absorbed_simt(const __grid_constant__ AbsorbedParams params) {
  constexpr int kNumbers = 16 / sizeof(T);  // of a piece
  DYNAMIC_SHARED(shared);

  const int lane = threadIdx.x % 32, head = threadIdx.x / 32;
  const Tile tile = load_tile(params.tiles, blockIdx.x);
  if (tile.candidate == kUnusedTile) return;
  const TileKeys keys(tile, params.tile_rows);
  const T* const x = static_cast<const T*>(params.rows);
  T* const stage = reinterpret_cast<T*>(shared);
  auto column = [&](int i) { return kNumbers * (lane + 32 * i); };
  auto exists = [&](int i) { return column(i) < params.hidden_size; };  // @columns

  const long long offset = ((long long)tile.candidate * params.num_heads + head) * params.hidden_size;
  float query[PIECES][kNumbers] = {}, sums[PIECES][kNumbers] = {}, top = kHidden, sum = 0.f;
#pragma unroll
  for (int i = 0; i < PIECES; i++)
    if (exists(i)) load_numbers(query[i], static_cast<const T*>(params.query) + offset + column(i));

  for (int first = 0; first < keys.count; first += kChunk) {
    const int staged = min_of(kChunk, keys.count - first);
    __syncthreads();  // @chunk-read the chunk before was read
    for (int slot = head; slot < staged; slot += params.num_heads) {
      const T* const row = x + keys.row(first + slot) * params.row_stride;
#pragma unroll
      for (int i = 0; i < PIECES; i++)
        if (exists(i))
          *reinterpret_cast<uint4*>(stage + slot * params.hidden_size + column(i)) =
              *reinterpret_cast<const uint4*>(row + column(i));
    }
    __syncthreads();  // @staged

    float scores[kChunk], higher = top;
#pragma unroll
    for (int slot = 0; slot < kChunk; slot++) {
      float s = 0.f;
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        float numbers[kNumbers];
        if (slot >= staged || !exists(i)) continue;
        load_numbers(numbers, stage + slot * params.hidden_size + column(i));
        s += dot(query[i], numbers);
      }
      scores[slot] = slot < staged ? warp_sum(s) * params.scale : kHidden;  // @exists
      higher = fmaxf(higher, scores[slot]);
    }
    const float factor = exp2_fast(top - higher);  // @factor
    top = higher;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
      for (int j = 0; j < kNumbers; j++) sums[i][j] *= factor;
#pragma unroll
    for (int slot = 0; slot < kChunk; slot++) {
      const float weight = exp2_fast(scores[slot] - top);
      sum += weight;
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        float numbers[kNumbers];
        if (slot >= staged || !exists(i)) continue;
        load_numbers(numbers, stage + slot * params.hidden_size + column(i));
        add_scaled(sums[i], weight, numbers);
      }
    }
  }

  if (tile.num_tiles == 1) {
#pragma unroll
    for (int i = 0; i < PIECES; i++)
      if (exists(i)) store_numbers(static_cast<T*>(params.out) + offset + column(i), sums[i], 1.f / sum);
    return;
  }
  float* const partial = partial_of(params, blockIdx.x, head);
  if (lane == 0) {
    partial[0] = top;
    partial[1] = sum;
  }
#pragma unroll
  for (int i = 0; i < PIECES; i++)
#pragma unroll
    for (int j = 0; j < kNumbers && exists(i); j++) partial[kPartialHeader + column(i) + j] = sums[i][j];
  arrive_and_merge<T>(params, tile, shared);
}
