// Windowed attention for any window and any query: a block computes 31 WARPS ROUNDS rows of one candidate in one head.
//
// In each round a warp takes 31 consecutive rows from r0 on and, as row 31 of its two m16 products, [CLS], whose sums
// go on from round to round. The block's keys are
//
//   number  0 .. G-1   the globals
//           G ..       rows begin - w .. end - 1 + w of the candidate, as far as they exist
//
// and go through shared memory in stages of params.stage_rows keys: one stage for all rounds where they fit, else
// several in each. Of each stage a warp attends to its band in chunks of 32 keys, and then to the globals, with an
// online softmax.
//
//   chunk     r0 - 64   r0 - 32   r0        r0 + 32   r0 + 64      at w = 64
//   row r0    x x x x   x x x x   x x x x   x x x x   x . . .      x seen, . hidden
//   ...       . x x x   x x x x   x x x x   x x x x   x x x .
//   row r0+30 . . . x   x x x x   x x x x   x x x x   x x x x
//   [CLS]     . . . .   . . . .   x x x .   . . . .   . . . .      and the globals in the candidate's first warp
//
// Chunks lie so that [CLS] sees keys of one of them, with which the warp begins. Masks cost a third of a chunk, and are
// taken at its edges alone.
//
// Rescaling is lazy: a row's sums are relative to a reference that follows its maximum only when it has grown by more
// than 2 ** kSlack. Weights up to 2 ** kSlack lose no precision in 16 bits.

constexpr int kSliceRows = 31;
constexpr int kChunk = 32;  // keys
constexpr float kSlack = 8.f;

// The state of a warp's 32 rows; row a of a lane is row g + 8 a. Lane (g, t) has columns 8j + 2t, 8j + 2t + 1 of sums.
template <int D>
struct SliceState {
  Slices<D> query[4];
  Output<D> sums[2];
  float top[4], sum[4];  // top: the reference, 0 at first
  unsigned unseen;       // bit a: row a has not seen a key yet
};

// Follows the maxima of scores that are relative to the references. first: nothing was summed up yet.
template <int D, int TILES>
__device__ __forceinline__ void raise_references(SliceState<D>& state, float (&scores)[2][TILES][4], bool first) {
#pragma unroll
  for (int a = 0; a < 4; a++) {
    float high = kHidden;
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) high = fmaxf(high, scores[a / 2][b][2 * (a % 2) + e]);
    high = quad_max(high);
    const bool sees = high > kHidden / 2;
    const float rise = sees && state.unseen >> a & 1 ? high : fmaxf(high, 0.f);  // @first-key
    if (!first) {
      const float factor = exp2_fast(-fmaxf(rise, 0.f));  // what has seen no key has no sums
      state.sum[a] *= factor;
      scale_row(state.sums[a / 2], a % 2, factor);
    }
    state.top[a] += rise;
    if (sees) state.unseen &= ~(1u << a);
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) scores[a / 2][b][2 * (a % 2) + e] -= rise;
  }
}

// Attends to 8 TILES keys that lie in shared memory from row `slot` on.
// visible(a): the keys that row a sees, one in a bit; asked if `masked`, and of row 3 if `cls_masked`, else all are seen.
// hides_cls: whether this lane's row 3 is [CLS] and sees none of the keys.  first: these are the warp's first keys.
template <class T, int D, int TILES, class Visible>
__device__ __forceinline__ void attend_chunk(SliceState<D>& state, const uint4* keys, const uint4* values, int slot,
                                             Visible visible, bool masked, bool cls_masked, bool hides_cls, bool first,
                                             float scale) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float scores[2][TILES][4];
#pragma unroll
  for (int b = 0; b < TILES; b++) {
    const Slices<D> loaded = staged_slices<D>(keys + 8 * b * (D / 8), slot + g);
#pragma unroll
    for (int h = 0; h < 2; h++) score<T, D>(scores[h][b], state.query[2 * h], state.query[2 * h + 1], loaded);
  }
#pragma unroll
  for (int a = 0; a < 4; a++) {
    const float reference = a == 3 && hides_cls ? -kHidden : state.top[a];  // @hides-cls
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float& s = scores[a / 2][b][2 * (a % 2) + e];
        s = fmaf(s, scale, -reference);
      }
  }

  auto mask_row = [&](int a) {
    const unsigned seen = visible(a) >> 2 * t;
#pragma unroll
    for (int b = 0; b < TILES; b++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (!(seen >> (8 * b + e) & 1)) scores[a / 2][b][2 * (a % 2) + e] = kHidden;
  };
  if (masked) {  // @masked
#pragma unroll
    for (int a = 0; a < 3; a++) mask_row(a);
  }
  if (masked || cls_masked) mask_row(3);

  float most[4];
#pragma unroll
  for (int a = 0; a < 4; a++) {
    auto score_of = [&](int i) { return scores[a / 2][i / 2][2 * (a % 2) + i % 2]; };
    most[a] = score_of(0);
#pragma unroll
    for (int i = 1; i < 2 * TILES; i += 2)
      most[a] = max_if_positive(most[a], score_of(i), score_of(min_of(i + 1, 2 * TILES - 1)));
  }
  const float high = max_if_positive(max_if_positive(most[0], most[1], most[2]), most[3], most[3]);
  bool raises = high > kSlack;
  // A row's first keys move its reference, unless they are near it already.
  if (state.unseen) raises |= fminf(fminf(most[0], most[1]), fminf(most[2], most[3])) < -kSlack / 2;  // @low
  if (__any_sync(kAllLanes, raises))  // @raises
    raise_references(state, scores, first);
  else
    state.unseen = 0;
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int b = 0; b < TILES; b++) {
      float(&s)[4] = scores[a / 2][b];
      float &even = s[2 * (a % 2)], &odd = s[2 * (a % 2) + 1];
      even = exp2_fast(even);
      odd = exp2_fast(odd);
      state.sum[a] += even + odd;
    }

#pragma unroll
  for (int b = 0; b < TILES / 2; b++) {
    unsigned weights[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* const pair = scores[h][2 * b + i / 2] + 2 * (i % 2);
        weights[h][i] = pack<T>(pair[0], pair[1]);
      }
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
      const uint4 loaded =
          load_transposed(values + 16 * b * (D / 8) + matrix_index<D>(slot + lane % 16, j + lane / 16));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const unsigned(&p)[4] = weights[h];
        mma_k16<T>(state.sums[h].column[j], p[0], p[1], p[2], p[3], loaded.x, loaded.y);
        mma_k16<T>(state.sums[h].column[j + 1], p[0], p[1], p[2], p[3], loaded.z, loaded.w);
      }
    }
  }
}

// Writes row g (half 0) or g + 8 (half 1) times `factor`, if `real`. Two lanes exchange numbers, so that each writes 8
// bytes. row: of this head, advanced by 4 (t / 2) + 8 (t % 2) numbers. Called by all lanes.
template <class T, int D>
__device__ __forceinline__ void store_columns(T* row, const Output<D>& out, int half, float factor, bool real) {
  const bool odd = threadIdx.x % 2;
#pragma unroll
  for (int j = 0; j < D / 8; j += 2) {
    const float(&x)[4] = out.column[j], (&y)[4] = out.column[j + 1];
    const unsigned a = pack<T>(x[2 * half] * factor, x[2 * half + 1] * factor);
    const unsigned b = pack<T>(y[2 * half] * factor, y[2 * half + 1] * factor);
    const unsigned other = __shfl_xor_sync(kAllLanes, odd ? a : b, 1);
    if (real) *reinterpret_cast<uint2*>(row + 8 * j) = odd ? make_uint2(other, b) : make_uint2(a, other);
  }
}

template <class T, int D, int WARPS, int ROUNDS, int MIN_BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS) wide_forward(const __grid_constant__ AttentionParams params) {
  constexpr int kPieces = D / 8;  // 16-byte pieces of a row
  constexpr int kRoundRows = kSliceRows * WARPS;
  constexpr int kTogether = 32 * WARPS / kPieces;  // rows that are copied at once
  static_assert(kTogether % 8 == 0, "the place of a thread's pieces is not the same in all its rows");
  DYNAMIC_SHARED(shared);

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);  // known to be the same in all lanes
  const int tile_number = blockIdx.x / params.num_heads, head = blockIdx.x % params.num_heads;
  const Tile tile = load_tile(params.tiles, tile_number);
  wait_for_earlier_launches();  // the tiles are older
  if (tile.candidate == kUnusedTile) return;

  const bool is_query = tile.is_query();
  const bool cls_lane = g == 7;  // its row g + 24 is [CLS]
  const int num_rows = tile.num_rows, end = min_of(tile.begin + ROUNDS * kRoundRows, num_rows), w = params.window;
  const int row_bytes = params.row_stride * sizeof(T);  // `is_readable` says that it fits
  const int model_dim = params.num_heads * D;
  auto row_at = [&](int part, int row, int number) {  // part: 0 for Q, 1 for K, 2 for V
    const T* const first = static_cast<const T*>(params.qkv) + part * model_dim + head * D + number;
    return reinterpret_cast<const char*>(first) + (long long)row * row_bytes;
  };

  const int globals = tile.query_rows + !is_query;
  const int band_begin = is_query ? 0 : max_of(0, tile.begin - w), band_end = is_query ? 0 : min_of(num_rows, end + w);
  const int num_keys = globals + band_end - band_begin;
  SliceState<D> state;
  state.unseen = is_query && cls_lane ? 7 : 15;
  bool first_keys = true;
  uint4* const keys = reinterpret_cast<uint4*>(shared);
  uint4* const values = keys + (params.stage_rows + kChunk) * kPieces;
  int round_begin = tile.begin;
  do {
    const bool later = round_begin > tile.begin;
    const int r0 = round_begin + kSliceRows * warp;
    const bool works = r0 < end || (num_rows == 0 && warp == 0);  // [CLS] of an empty candidate sees the globals
    const int own_begin = max_of(band_begin, r0 - w), own_end = min_of(band_end, r0 + kSliceRows + w);
    const bool cls_sees_globals = r0 == 0 && !is_query;  // @cls-globals
    state.unseen |= cls_lane ? 7 : 15;
#pragma unroll
    for (int a = 0; a < 4; a++) {
      if (a == 3 && cls_lane && later) continue;  // @cls-goes-on
      state.top[a] = 0.f;
      state.sum[a] = 0.f;
      clear_row(state.sums[a / 2], a % 2);
    }

    for (int stage = 0; stage < num_keys; stage += params.stage_rows) {
      const int staged = min_of(params.stage_rows, num_keys - stage);
      const int staged_globals = clamp(globals - stage, 0, staged);
      // The candidate's rows in this stage, of which the first lies in slot `staged_globals`.
      const int staged_begin = band_begin + stage + staged_globals - globals;
      const int staged_end = staged_begin + staged - staged_globals;
      const bool copies = !later || params.stage_rows < num_keys;  // @copies
      if (copies) {
        if (stage || later) __syncthreads();  // @stage-free everyone is done with the stage before
        const int i = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
        auto copy_row = [&](int to_key, int to_value, const char* from) {
          copy_async(keys + to_key, from, true);
          copy_async(values + to_value, from + model_dim * sizeof(T), true);
        };
#pragma unroll 1
        for (int slot = i; slot < staged_globals; slot += kTogether)
          copy_row(key_index<D>(slot, piece), matrix_index<D>(slot, piece),
                   row_at(1, tile.global_row(stage + slot + is_query), 8 * piece));
        const char* from = row_at(1, tile.first_row + staged_begin + i, 8 * piece);
        int slot = staged_globals + i, to_key = key_index<D>(slot, piece), to_value = matrix_index<D>(slot, piece);
#pragma unroll 1
        for (; slot < staged; slot += kTogether) {
          copy_row(to_key, to_value, from);
          to_key += kTogether * kPieces;
          to_value += kTogether * kPieces;
          from += (long long)kTogether * row_bytes;
        }
        // Where there are fewer rows than in a chunk, it reaches beyond them, to values of which none may be NaN.
        if (staged - staged_globals < kChunk)
          for (int i = threadIdx.x; i < kChunk * kPieces; i += 32 * WARPS) values[staged * kPieces + i] = uint4{};
        commit_copies();
      }
      if (stage == 0) {  // queries arrive together with the keys
#pragma unroll
        for (int a = 0; a < 4; a++) {
          const bool cls = a == 3 && cls_lane;
          const int position = clamp(r0 + g + 8 * a, 0, max_of(num_rows - 1, 0));
          const int row = cls ? tile.any_row() : tile.first_row + position;
          const unsigned real = cls || r0 + g + 8 * a < end ? kAllLanes : 0;
          state.query[a] = load_slices<T, D>(reinterpret_cast<const T*>(row_at(0, row, 8 * t)));
          // This leaves numbers in the registers in which products expect them; else the loop would move them.
#pragma unroll
          for (uint4& x : state.query[a].slice) x = make_uint4(x.x & real, x.y & real, x.z & real, x.w & real);
        }
      }
      if (copies) {
        wait_for_copies<0>();  // @copied
        __syncthreads();  // @staged
      }
      if (!works) continue;

      const int low = max_of(own_begin, staged_begin), high = min_of(own_end, staged_end);
      const int first_chunk = (low - r0) >> 5, last_chunk = (high - 1 - r0) >> 5;
      int chunk = first_chunk <= 0 && last_chunk >= 0 ? 0 : first_chunk;  // the warp's own rows before others
      for (int left = low < high ? last_chunk - first_chunk + 1 : 0; left > 0; left--) {
        const int begin = max_of(low, r0 + kChunk * chunk), limit = min_of(high, r0 + kChunk * (chunk + 1));
        const int first = max_of(staged_begin, min_of(r0 + kChunk * chunk, staged_end - kChunk));
        auto visible = [&](int a) {
          const bool cls = a == 3 && cls_lane;
          const int row = r0 + g + 8 * a;
          const int from = cls ? begin : max_of(begin, row - w);
          const int count = (cls ? min_of(limit, r0 + kSliceRows) : min_of(limit, row + w + 1)) - from;  // @band
          return count > 0 ? kAllLanes >> (32 - count) << (from - first) : 0;
        };
        const bool all_exist = limit - begin == kChunk;  // @limit
        const bool all_see = begin >= r0 + kSliceRows - 1 - w && limit <= r0 + w + 1;  // @edge
        attend_chunk<T, D, kChunk / 8>(state, keys, values, staged_globals + first - staged_begin, visible,
                                       !all_exist || !all_see, chunk == 0, cls_lane && chunk != 0, first_keys,
                                       params.scale);
        first_keys = false;
        chunk = chunk < last_chunk ? chunk + 1 : first_chunk;
      }
      for (int slot = 0; slot < staged_globals; slot += 16) {
        const int count = staged_globals - slot;
        auto visible = [&](int) { return count < 16 ? (1u << count) - 1 : 0xffffu; };  // @last-global
        attend_chunk<T, D, 2>(state, keys, values, slot, visible, count < 16, false, cls_lane && !cls_sees_globals,
                              first_keys, params.scale);
        first_keys = false;
      }
    }

    if (works) {
      T* to = static_cast<T*>(params.out) + (long long)(tile.first_row + r0 + g) * model_dim;
      to += head * D + 4 * (t / 2) + 8 * (t % 2);
#pragma unroll
      for (int a = 0; a < 4; a++) {
        const float sum = quad_sum(state.sum[a]);
        const int position = r0 + g + 8 * a;
        const bool written = position < end && !(a == 3 && cls_lane);  // @written
        store_columns<T, D>(to, state.sums[a / 2], a % 2, reciprocal_fast(sum), written);
        to += 8 * model_dim;
        if (!written || !params.lse || t) continue;
        const long long row = tile.first_row + position;
        params.lse[row * params.num_heads + head] = state.top[a] + log2_fast(sum);
      }
    }
    round_begin += kRoundRows;
  } while (round_begin < end);

  if (is_query) return;
  // The warps' [CLS] rows are merged in shared memory, those of the tiles of a candidate in params.partials.
  float* const partials = reinterpret_cast<float*>(shared);
  const float cls_sum = quad_sum(state.sum[3]);
  __syncthreads();  // @stages-read the last stage was read
  if (cls_lane) {
    float* const partial = partials + warp * kPartial<D>;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) partial[2 + 8 * j + 2 * t + e] = state.sums[1].column[j][2 + e];
    if (t == 0) {
      partial[0] = state.unseen & 8 ? kHidden : state.top[3];
      partial[1] = cls_sum;
    }
  }
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
