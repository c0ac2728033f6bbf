// The absorbed last layer on tensor cores: 16 heads, of which some may not exist, are the rows of one product.
//
// A warp has 32 SLICES columns of everything: of the query, of the keys, of the sums. It copies its columns of the keys to
// shared memory, 16 keys at a time and 16 ahead, and reads them there twice:
//
//             warp 0           warp 1
//           |- 32 SLICES -|- 32 SLICES -| ...
//   scores  16 heads x 16 keys, a part of each dot product; the warps add their parts up, in order, through shared memory
//   sums    16 heads x the warp's columns += weights x keys
//
// so that, but for those parts (2 KiB a warp), no warp waits for another, and all compute the same weights. Columns from
// hidden_size on, and keys that do not exist, are zeros in shared memory.
//
// A chunk is a long chain of steps that wait for each other. So GROUPS groups of WARPS warps take chunks in turn, and are
// merged at the end.
//
// Rescaling is lazy: a head's sums are relative to a reference that follows its maximum only when it has grown by more
// than 2 ** kSlack. Weights up to 2 ** kSlack lose no precision in 16 bits.

constexpr int kChunk = 16;  // keys
constexpr int kStages = 2;  // chunks of each warp in shared memory; on an H200, three and four gain nothing
constexpr float kSlack = 8.f;

// The index of piece `piece` (8 numbers) of key `key` among a warp's, such that the lanes of one read hit all banks once:
// pieces of keys 2i and 2i + 1 when scores are computed, of keys 0, 2, 4, 6 and so on when they are summed.
template <int SLICES>
__device__ __forceinline__ int piece_index(int key, int piece) {
  return 4 * SLICES * key + (key & ~1) + (SLICES % 2 ? piece : piece ^ (key & 1) << 2);
}

template <class T, int SLICES, int WARPS, int GROUPS, int MIN_BLOCKS>
__global__ void __launch_bounds__(32 * WARPS * GROUPS, MIN_BLOCKS) absorbed_mma(const __grid_constant__ AbsorbedParams params) {
  constexpr int kColumns = 32 * SLICES, kKeyPieces = 4 * SLICES;
  constexpr int kStagePieces = kChunk * (kKeyPieces + 1), kParts = 2 * WARPS * 2 * 32;
  DYNAMIC_SHARED(shared);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, g = lane / 4, t = lane % 4;
  const int group = threadIdx.x / (32 * WARPS);
  const Tile tile = load_tile(params.tiles, blockIdx.x);
  wait_for_earlier_launches();  // the tiles are older
  if (tile.candidate == kUnusedTile) return;
  const TileKeys keys(tile, params.tile_rows);
  const int first_column = kColumns * warp, columns = clamp(params.hidden_size - first_column, 0, kColumns);
  const T* const x = static_cast<const T*>(params.rows) + first_column;
  uint4* const stages = reinterpret_cast<uint4*>(shared) + threadIdx.x / 32 * kStages * kStagePieces;
  float4* const parts = reinterpret_cast<float4*>(reinterpret_cast<uint4*>(shared) + GROUPS * WARPS * kStages * kStagePieces) +
                        group * kParts;

  auto copy_chunk = [&](int turn) {
    const int chunk = GROUPS * turn + group;
    for (int i = lane; i < kChunk * kKeyPieces && kChunk * chunk < keys.count; i += 32) {
      const int slot = i / kKeyPieces, key = kChunk * chunk + slot, piece = i % kKeyPieces;
      const bool real = key < keys.count && 8 * piece < columns;
      const T* from = real ? x + keys.row(key) * params.row_stride + 8 * piece : x;
      copy_async(stages + turn % kStages * kStagePieces + piece_index<SLICES>(slot, piece), from, real);  // @pieces
    }
    commit_copies();
  };

#pragma unroll
  for (int turn = 0; turn < kStages - 1; turn++) copy_chunk(turn);
  Slices<kColumns> query[2];
  Output<32> sums[SLICES];
  float top[2], sum[2];
  auto head_of = [&](int half) { return g + 8 * half; };
  auto has_slice = [&](int i) { return 32 * i + 8 * t < columns; };  // @columns the numbers from 8 t on
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const long long index = (long long)tile.candidate * params.num_heads + min_of(head_of(half), params.num_heads - 1);
    const T* from = static_cast<const T*>(params.query) + index * params.hidden_size + first_column + 8 * t;
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
      query[half].slice[i] = has_slice(i) ? *reinterpret_cast<const uint4*>(from + 32 * i) : make_uint4(0, 0, 0, 0);
      clear_row(sums[i], half);
    }
    top[half] = kHidden;
    sum[half] = 0.f;
  }

  for (int turn = 0; kChunk * GROUPS * turn < keys.count; turn++) {
    const int chunk = GROUPS * turn + group;
    const bool works = kChunk * chunk < keys.count;
    __syncwarp();  // the chunk before was read, and its memory is free
    copy_chunk(turn + kStages - 1);  // @ahead
    wait_for_copies<kStages - 1>();  // @copied
    __syncwarp();  // @staged
    const uint4* const staged = stages + turn % kStages * kStagePieces;
    float4* const board = parts + turn % 2 * (WARPS * 2 * 32) + lane;  // @board

    float scores[2][4];  // of keys 0-7 and 8-15
#pragma unroll
    for (int b = 0; b < 2 && works; b++) {
      Slices<kColumns> key;
#pragma unroll
      for (int i = 0; i < SLICES; i++) key.slice[i] = staged[piece_index<SLICES>(8 * b + g, 4 * i + t)];
      score<T, kColumns>(scores[b], query[0], query[1], key);
      board[(2 * warp + b) * 32] = make_float4(scores[b][0], scores[b][1], scores[b][2], scores[b][3]);
    }
    // The next chunk's parts lie elsewhere, and after the next chunk's barrier all have read these.
    __syncthreads();  // @parts
    if (!works) continue;
    float high[2] = {kHidden, kHidden};
#pragma unroll
    for (int b = 0; b < 2; b++) {
      float4 whole = board[b * 32];
#pragma unroll
      for (int w = 1; w < WARPS; w++) {
        const float4 part = board[(2 * w + b) * 32];
        whole = make_float4(whole.x + part.x, whole.y + part.y, whole.z + part.z, whole.w + part.w);
      }
      const float products[4] = {whole.x, whole.y, whole.z, whole.w};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const bool exists = kChunk * chunk + 8 * b + 2 * t + e % 2 < keys.count;  // @exists
        scores[b][e] = exists ? products[e] * params.scale : kHidden;
        high[e / 2] = fmaxf(high[e / 2], scores[b][e]);
      }
    }

    high[0] = quad_max(high[0]);
    high[1] = quad_max(high[1]);
    if (__any_sync(kAllLanes, high[0] > top[0] + kSlack || high[1] > top[1] + kSlack)) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float higher = fmaxf(top[half], high[half]);
        const float factor = exp2_fast(top[half] - higher);  // @factor
        top[half] = higher;
        sum[half] *= factor;
#pragma unroll
        for (int i = 0; i < SLICES; i++) scale_row(sums[i], half, factor);
      }
    }
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        scores[b][e] = exp2_fast(scores[b][e] - top[e / 2]);
        sum[e / 2] += scores[b][e];
      }

#pragma unroll
    for (int i = 0; i < SLICES; i++) {
      Segment<32> values[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int key = 2 * t + k % 2 + 8 * (k / 2);
        const uint2 pair = reinterpret_cast<const uint2*>(staged + piece_index<SLICES>(key, 4 * i + g / 2))[g % 2];
        values[k] = {{pair.x, pair.y}};
      }
      add_values<T, 32>(sums[i], scores[0], scores[1], values);
    }
  }

#pragma unroll
  for (int half = 0; half < 2; half++) sum[half] = quad_sum(sum[half]);  // @sum
  if constexpr (GROUPS > 1) {  // the second group leaves its result in shared memory, number by number, and the first adds it
    static_assert(GROUPS == 2);
    float* const board = reinterpret_cast<float*>(shared) + threadIdx.x % (32 * WARPS);
    __syncthreads();  // @groups-read
    for (int half = 0; half < 2 && group; half++) {
      board[32 * WARPS * half] = top[half];
      board[32 * WARPS * (2 + half)] = sum[half];
    }
#pragma unroll
    for (int n = 0; n < 16 * SLICES; n++)
      if (group) board[32 * WARPS * (4 + n)] = sums[n / 16].column[n / 4 % 4][n % 4];
    __syncthreads();  // @groups-written
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float other = group ? kHidden : board[32 * WARPS * half], higher = fmaxf(top[half], other);
      const float own_factor = exp2_fast(top[half] - higher);
      const float factor = exp2_fast(other - higher);  // @groups-factor
      if (group) continue;
      top[half] = higher;
      sum[half] = sum[half] * own_factor + board[32 * WARPS * (2 + half)] * factor;
#pragma unroll
      for (int n = 0; n < 8 * SLICES; n++) {
        float& own = sums[n / 8].column[n / 2 % 4][n % 2 + 2 * half];
        own = own * own_factor + board[32 * WARPS * (4 + n / 2 * 4 + n % 2 + 2 * half)] * factor;
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int head = head_of(half);
    if (group || head >= params.num_heads) continue;  // @heads
    if (tile.num_tiles == 1) {
      const long long index = (long long)tile.candidate * params.num_heads + head;
      T* const out = static_cast<T*>(params.out) + index * params.hidden_size + first_column + 8 * t;
#pragma unroll
      for (int i = 0; i < SLICES; i++)
        if (has_slice(i)) store_row<T, 32>(out + 32 * i, sums[i], half, 1.f / sum[half]);
      continue;
    }
    float* const partial = partial_of(params, blockIdx.x, head);
    if (warp == 0 && t == 0) {
      partial[0] = top[half];
      partial[1] = sum[half];
    }
    float4* const to = reinterpret_cast<float4*>(partial + kPartialHeader + first_column + 8 * t);
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
      const float(&column)[4][4] = sums[i].column;
      if (!has_slice(i)) continue;
      to[8 * i] = make_float4(column[0][2 * half], column[1][2 * half], column[2][2 * half], column[3][2 * half]);
      to[8 * i + 1] = make_float4(column[0][2 * half + 1], column[1][2 * half + 1], column[2][2 * half + 1], column[3][2 * half + 1]);
    }
  }
  if (tile.num_tiles > 1) arrive_and_merge<T>(params, tile, shared);
}
