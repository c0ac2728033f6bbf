// Windowed attention for any window and any query: a block computes 31 WARPS rows of one candidate in one head.
//
// Each warp takes 31 consecutive rows and, as row 31 of its two m16 products, [CLS]. The keys of the block are
//
//   number  0 .. G-1   the globals
//           G ..       rows begin - w .. end - 1 + w of the candidate, as far as they exist
//
// and go through shared memory in stages of params.stage_rows keys: one stage where they fit, else several. Of each
// stage a warp attends to the globals and to its band, in chunks of 32 keys, masked at edges, with an online softmax.
// [CLS] sees the 31 rows of the warp, and the globals in the candidate's first warp.
//
// Rescaling is lazy: a row's sums are relative to a reference that follows its maximum only when it has grown by more
// than 2 ** kSlack. Weights up to 2 ** kSlack lose no precision in 16 bits.

constexpr int kSliceRows = 31;
constexpr int kChunk = 32;  // keys
constexpr float kSlack = 8.f;

// The state of a warp's 32 rows; row a of a lane is row g + 8 a.
template <int D>
struct SliceState {
  Slices<D> query[4];
  Output<D> sums[2];
  float top[4], sum[4];
};

// A row sees the keys first .. first + count - 1.
struct Visible {
  int first, count;
  __device__ __forceinline__ bool sees(int key) const { return unsigned(key - first) < unsigned(count); }
};

// Attends to 8 TILES keys that lie in shared memory from row `slot`, counted `key`, `key` + 1, ...; those from `limit` on
// are no keys, but are read all the same.
// all_see: keys that all rows but [CLS] see.
template <class T, int D, int TILES>
__device__ __forceinline__ void attend_chunk(SliceState<D>& state, const uint4* keys, const uint4* values, int slot,
                                             int key, int limit, const Visible (&visible)[4], Visible all_see,
                                             float scale) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float scores[2][TILES][4];
#pragma unroll
  for (int b = 0; b < TILES; b++) {
    const Slices<D> loaded = staged_slices<D>(keys + 8 * b * (D / 8), slot + g);
#pragma unroll
    for (int h = 0; h < 2; h++) score<T, D>(scores[h][b], state.query[2 * h], state.query[2 * h + 1], loaded);
  }

  const int last = key + 8 * TILES - 1;
  auto mask_row = [&](int a) {
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int number = key + 8 * b + 2 * t + e;
        if (number >= limit || !visible[a].sees(number)) scores[a / 2][b][2 * (a % 2) + e] = kHidden;  // @limit
      }
  };
  mask_row(3);  // [CLS] in some lanes
  if (last >= limit || !all_see.sees(key) || !all_see.sees(last)) {  // @edge
#pragma unroll
    for (int a = 0; a < 3; a++) mask_row(a);
  }
  float high[4] = {kHidden, kHidden, kHidden, kHidden};
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) high[a] = fmaxf(high[a], scores[a / 2][b][2 * (a % 2) + e]);

  bool grows = false;
#pragma unroll
  for (int a = 0; a < 4; a++) {
    high[a] = quad_max(high[a]);
    high[a] = high[a] > kHidden ? high[a] * scale : kHidden;
    grows |= high[a] > state.top[a] + kSlack;
  }
  if (__any_sync(kAllLanes, grows)) {
#pragma unroll
    for (int a = 0; a < 4; a++) {
      const float top = fmaxf(state.top[a], high[a]), factor = exp2_fast(state.top[a] - top);
      state.top[a] = top;
      state.sum[a] *= factor;
      scale_row(state.sums[a / 2], a % 2, factor);
    }
  }
#pragma unroll
  for (int a = 0; a < 4; a++) {
    // [CLS] may have seen no key yet; hidden scores less 0 still have weight 0.
    const float reference = state.top[a] > kHidden ? state.top[a] : 0.f;
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float& s = scores[a / 2][b][2 * (a % 2) + e];
        s = exp2_fast(fmaf(s, scale, -reference));
        state.sum[a] += s;
      }
  }

#pragma unroll
  for (int b = 0; b < TILES / 2; b++) {
    Segment<D> loaded[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      loaded[i] = staged_segment<D>(values + (16 * b + 8 * (i / 2)) * (D / 8), slot + 2 * t + i % 2);
#pragma unroll
    for (int h = 0; h < 2; h++) add_values<T, D>(state.sums[h], scores[h][2 * b], scores[h][2 * b + 1], loaded);
  }
}

template <class T, int D, int WARPS, int MIN_BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS) wide_forward(const __grid_constant__ AttentionParams params) {
  constexpr int kPieces = D / 8;  // 16-byte pieces of a row
  DYNAMIC_SHARED(shared);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int tile_number = blockIdx.x / params.num_heads, head = blockIdx.x % params.num_heads;
  const Tile tile = load_tile(params.tiles, tile_number);
  if (tile.candidate == kUnusedTile) return;

  const bool is_query = tile.is_query();
  const bool cls_lane = g == 7;  // its row g + 24 is [CLS]
  const int num_rows = tile.num_rows, end = min_of(tile.begin + kSliceRows * WARPS, num_rows), w = params.window;
  const long long stride = params.row_stride;
  const int model_dim = params.num_heads * D;
  const T* const q = static_cast<const T*>(params.qkv) + head * D;
  const T* const k = q + model_dim;
  const T* const v = k + model_dim;
  T* const out = static_cast<T*>(params.out) + head * D + t * (D / 4);

  const int globals = tile.query_rows + !is_query;
  const int band_begin = is_query ? 0 : max_of(0, tile.begin - w), band_end = is_query ? 0 : min_of(num_rows, end + w);
  const int num_keys = globals + band_end - band_begin;
  auto key_row = [&](int number) {
    return number < globals ? tile.global_row(number + is_query) : tile.first_row + band_begin + number - globals;
  };

  const int r0 = tile.begin + kSliceRows * warp;
  const bool works = r0 < end || (num_rows == 0 && warp == 0);  // [CLS] of an empty candidate sees the globals
  const int own_begin = max_of(band_begin, r0 - w), own_end = min_of(band_end, r0 + kSliceRows + w);

  Visible global_keys[4], band_keys[4];
#pragma unroll
  for (int a = 0; a < 4; a++) {
    const bool cls = a == 3 && cls_lane;
    global_keys[a] = {0, !cls || (r0 == 0 && !is_query) ? globals : 0};
    band_keys[a] = cls ? Visible{r0, kSliceRows} : Visible{r0 + g + 8 * a - w, 2 * w + 1};  // @band
  }
  const Visible all_see_globals = {0, globals}, all_see_band = {r0 + kSliceRows - 1 - w, max_of(0, 2 * w + 2 - kSliceRows)};

  SliceState<D> state;
#pragma unroll
  for (int a = 0; a < 4; a++) {
    const int position = clamp(r0 + g + 8 * a, 0, max_of(num_rows - 1, 0));  // rows beyond are not written
    const int row = a == 3 && cls_lane ? tile.any_row() : tile.first_row + position;
    state.query[a] = load_slices<T, D>(q + row * stride + 8 * t);
    state.top[a] = kHidden;
    state.sum[a] = 0.f;
    clear_row(state.sums[a / 2], a % 2);
  }

  uint4* const keys = reinterpret_cast<uint4*>(shared);
  uint4* const values = keys + (params.stage_rows + kChunk) * kPieces;
  for (int stage = 0; stage < num_keys; stage += params.stage_rows) {
    const int staged = min_of(params.stage_rows, num_keys - stage);
    if (stage) __syncthreads();  // @stage-free everyone is done with the stage before
    // A chunk may reach beyond the stage, where other keys lie, or the last key again.
    for (int i = threadIdx.x; i < (staged + kChunk - 1) * kPieces; i += 32 * WARPS) {
      const int slot = i / kPieces, piece = i % kPieces;
      const long long offset = key_row(min_of(stage + slot, num_keys - 1)) * stride + 8 * piece;
      keys[key_index<D>(slot, piece)] = *reinterpret_cast<const uint4*>(k + offset);
      values[value_index<D>(slot, piece)] = *reinterpret_cast<const uint4*>(v + offset);
    }
    __syncthreads();  // @staged
    if (!works) continue;

    const int global_limit = min_of(globals, stage + staged);
    for (int number = stage; number < global_limit; number += 16)
      attend_chunk<T, D, 2>(state, keys, values, number - stage, number, global_limit, global_keys,
                            all_see_globals, params.scale);
    const int staged_row = band_begin + stage - globals;  // the candidate's row that would lie in slot 0
    const int limit = min_of(own_end, staged_row + staged);
    for (int row = max_of(own_begin, staged_row); row < limit; row += kChunk)
      attend_chunk<T, D, kChunk / 8>(state, keys, values, row - staged_row, row, limit, band_keys, all_see_band,
                            params.scale);
  }

#pragma unroll
  for (int a = 0; a < 4 && works; a++) {
    state.sum[a] = quad_sum(state.sum[a]);
    const int position = r0 + g + 8 * a;
    if (position >= end || (a == 3 && cls_lane)) continue;  // @written
    const long long row = tile.first_row + position;
    store_row<T, D>(out + row * model_dim, state.sums[a / 2], a % 2, reciprocal_fast(state.sum[a]));
    if (params.lse && t == 0) params.lse[row * params.num_heads + head] = state.top[a] + log2_fast(state.sum[a]);
  }

  if (is_query) return;
  // The warps' [CLS] rows are merged in shared memory, those of the tiles of a candidate in params.partials.
  float* const partials = reinterpret_cast<float*>(shared);
  __syncthreads();  // @stages-read the last stage was read
  if (cls_lane) store_partial<D>(partials + warp * kPartial<D>, state.sums[1], 1, state.top[3], state.sum[3]);
  __syncthreads();  // @cls-rows
  if (warp) return;
  const ClsRow<D> merged = merge_partials<D>(partials, kPartial<D>, WARPS);
  if (tile.num_tiles == 1) {
    store_cls<T, D>(params, tile.candidate, head, merged);
    return;
  }
  store_merged<D>(partial_of<D>(params, tile_number, head), merged);
  arrive_and_merge<T, D>(params, tile, tile_number, head);
}
