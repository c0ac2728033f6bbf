// Windowed attention for windows up to 16: a warp computes TILE_ROWS rows of one candidate in one head.
//
// It goes down its tile in steps of 15 rows, each an m16 product whose row 15 is [CLS]:
//
//             globals                band: r0 - w .. r0 + 14 + w
//   row r0    x x x x x x . .        x x x x x . . . . . . . . .      x seen, . hidden
//   row r0+1  x x x x x x . .        . x x x x x . . . . . . . .
//     ...
//   row r0+14 x x x x x x . .        . . . . . . . . . x x x x x
//   [CLS]     (first step only)      . . x x x x x x x x x x . .      the 15 rows of the step
//
// Rows start afresh in each step; all their scores are in registers, so their softmax is taken at once. Row 15 carries its
// maximum, sum and values from step to step.
//
// A warp's rows go through shared memory of its own, so that there is no block barrier. Each place is filled again as soon
// as it was read, and no memory is waited for but at the start:
//
//   step      products of Q and K | softmax | products with V | results
//   copies    V of this step ---------------> Q and K of the next ----->
//
// BAND_TILES, GLOBAL_TILES: tiles of 8 keys, 8 BAND_TILES >= 15 + 2w and 8 GLOBAL_TILES > rows of the longest query.

constexpr int kStepRows = 15;

template <int D>
constexpr int kHeadsPerBlock = 128 / D;  // their rows are 256 consecutive bytes

// A warp's rows in shared memory.
template <int D, int BAND_TILES, int GLOBAL_TILES>
struct WarpRows {
  uint4 queries[16 * (D / 8)];
  uint4 keys[8 * BAND_TILES * (D / 8)], values[8 * BAND_TILES * (D / 8)];
  uint4 global_keys[8 * GLOBAL_TILES * (D / 8)], global_values[8 * GLOBAL_TILES * (D / 8)];
};

// Starts to copy 8 TILES rows. from(i): the address of this lane's piece of row i.  index: their layout.
template <int D, int TILES, class From, class Index>
__device__ __forceinline__ void copy_tiles(uint4* to, From from, Index index) {
  constexpr int kPieces = D / 8;
  const int row = threadIdx.x % 32 / kPieces, piece = threadIdx.x % kPieces;
#pragma unroll
  for (int more = 0; more < 8 * TILES; more += 32 / kPieces)
    copy_async_through_l1(to + more / 8 * 8 * kPieces + index(row + more % 8, piece), from(row + more));
}

// Scores of 16 rows with 8 keys, as `score` computes them. query: their matrices.
template <class T, int D>
__device__ __forceinline__ void score_tile(float (&scores)[4], const uint4 (&query)[D / 16], const uint4* keys) {
  const int lane = threadIdx.x % 32;
  scores[0] = scores[1] = scores[2] = scores[3] = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    const uint4 a = query[2 * i], b = query[2 * i + 1], k = load_matrices(keys + matrix_index<D>(lane % 8, 4 * i + lane / 8));
    mma_k16<T>(scores, a.x, a.y, a.z, a.w, k.x, k.y);
    mma_k16<T>(scores, b.x, b.y, b.z, b.w, k.z, k.w);
  }
}

// out += P V over 8 TILES keys. weights: as `score` leaves scores.
template <class T, int D, int TILES>
__device__ __forceinline__ void add_tiles(Output<D>& out, const float (*weights)[4], const uint4* values) {
  constexpr int kTile = 8 * (D / 8);
  const int t = threadIdx.x % 4;
  auto segment = [&](int tile, int odd) { return staged_segment<D>(values + tile * kTile, 2 * t + odd); };
#pragma unroll
  for (int b = 0; b + 1 < TILES; b += 2) {
    const Segment<D> rows[4] = {segment(b, 0), segment(b, 1), segment(b + 1, 0), segment(b + 1, 1)};
    add_values<T, D>(out, weights[b], weights[b + 1], rows);
  }
  if constexpr (TILES % 2) add_values<T, D>(out, weights[TILES - 1], segment(TILES - 1, 0), segment(TILES - 1, 1));
}

template <class T, int D, int BAND_TILES, int GLOBAL_TILES, int TILE_ROWS, int MIN_BLOCKS>
__global__ void __launch_bounds__(32 * kHeadsPerBlock<D>, MIN_BLOCKS)
    narrow_forward(const __grid_constant__ AttentionParams params) {
  static_assert(TILE_ROWS % kStepRows == 0);
  constexpr int kTiles = GLOBAL_TILES + BAND_TILES, kTile = 8 * (D / 8);
  DYNAMIC_SHARED(shared);

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int head_groups = (params.num_heads + kHeadsPerBlock<D> - 1) / kHeadsPerBlock<D>;
  const int tile_number = blockIdx.x / head_groups;
  const int head = blockIdx.x % head_groups * kHeadsPerBlock<D> + threadIdx.x / 32;
  const Tile tile = load_tile(params.tiles, tile_number);
  wait_for_earlier_launches();  // the tiles are older
  if (head >= params.num_heads || tile.candidate == kUnusedTile) return;

  const bool is_query = tile.is_query();
  const bool cls_lane = threadIdx.x % 32 >= 28;  // g is 7, and row g + 8 [CLS]
  const int num_rows = tile.num_rows, end = min_of(tile.begin + TILE_ROWS, num_rows);
  const int band_rows = is_query ? 0 : num_rows, w = params.window;
  const float scale = params.scale;
  const int model_dim = params.num_heads * D;
  const int row_bytes = params.row_stride * sizeof(T);  // `is_readable` says that it fits
  const T* const qkv = static_cast<const T*>(params.qkv) + head * D + 8 * (lane % (D / 8));  // this lane's piece
  T* const out = static_cast<T*>(params.out) + head * D + t * (D / 4);

  auto row_at = [&](int part, int row) {  // part: 0 for Q, 1 for K, 2 for V
    return reinterpret_cast<const char*>(qkv + part * model_dim) + (long long)row * row_bytes;
  };
  // Rows beyond the candidate are read as its last one, and not written.
  const int last_row = tile.first_row + max_of(num_rows - 1, 0);
  auto row_of = [&](int position) { return clamp(tile.first_row + position, tile.first_row, last_row); };

  WarpRows<D, BAND_TILES, GLOBAL_TILES>& rows =
      reinterpret_cast<WarpRows<D, BAND_TILES, GLOBAL_TILES>*>(shared)[threadIdx.x / 32];
  auto copy_queries_and_keys = [&](int r0) {
    auto query = [&](int i) { return row_at(0, i == kStepRows ? tile.any_row() : row_of(r0 + i)); };
    copy_tiles<D, 2>(rows.queries, query, matrix_index<D>);
    copy_tiles<D, BAND_TILES>(rows.keys, [&](int i) { return row_at(1, row_of(r0 - w + i)); }, matrix_index<D>);
  };
  auto copy_values = [&](int r0) {
    copy_tiles<D, BAND_TILES>(rows.values, [&](int i) { return row_at(2, row_of(r0 - w + i)); }, value_index<D>);
  };
  int r0 = tile.begin;
  copy_tiles<D, GLOBAL_TILES>(rows.global_keys, [&](int i) { return row_at(1, tile.global_row(i)); }, matrix_index<D>);
  copy_queries_and_keys(r0);
  commit_copies();
  copy_tiles<D, GLOBAL_TILES>(rows.global_values, [&](int i) { return row_at(2, tile.global_row(i)); }, value_index<D>);
  copy_values(r0);
  commit_copies();

  float cls_top = kHidden, cls_sum = 0.f;
  Output<D> sums;
  clear_row(sums, 1);

  do {  // once for an empty candidate, whose [CLS] sees the globals
    wait_for_copies<1>();  // @keys-copied
    __syncwarp();  // @keys-staged
    uint4 query[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++) query[i] = load_matrices(rows.queries + matrix_index<D>(lane % 16, 2 * i + lane / 16));
    float scores[kTiles][4];
    float top = kHidden, bottom = kHidden;  // maxima of rows g and g + 8

    // Number 0 is no key of a query row.
    const int first_global = is_query, globals = tile.query_rows + 1 - first_global;
    const int bottom_globals = !cls_lane ? globals : r0 == 0 && !is_query ? globals : 0;  // @cls-globals
#pragma unroll
    for (int b = 0; b < GLOBAL_TILES; b++) {
      float(&s)[4] = scores[b];
      score_tile<T, D>(s, query, rows.global_keys + b * kTile);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const unsigned number = 8 * b + 2 * t + e - first_global;
        if (number >= unsigned(globals)) s[e] = kHidden;
        if (number >= unsigned(bottom_globals)) s[e + 2] = kHidden;
        top = fmaxf(top, s[e]);
        bottom = fmaxf(bottom, s[e + 2]);
      }
    }

    // Key number i of the band is row r0 - w + i of the candidate. Row g sees numbers g .. g + 2w; [CLS] w .. w + 14.
    const int band = r0 - w;
    const int bottom_first = cls_lane ? w : g + 8, bottom_count = cls_lane ? kStepRows : 2 * w + 1;
#pragma unroll
    for (int b = 0; b < BAND_TILES; b++) {
      float(&s)[4] = scores[GLOBAL_TILES + b];
      score_tile<T, D>(s, query, rows.keys + b * kTile);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int i = 8 * b + 2 * t + e;
        const bool exists = unsigned(band + i) < unsigned(band_rows);  // @border
        if (!exists || unsigned(i - g) > unsigned(2 * w)) s[e] = kHidden;  // @window
        if (!exists || unsigned(i - bottom_first) >= unsigned(bottom_count)) s[e + 2] = kHidden;
        top = fmaxf(top, s[e]);
        bottom = fmaxf(bottom, s[e + 2]);
      }
    }
    const int next = r0 + kStepRows;
    __syncwarp();  // all have read the keys
    if (next < end) copy_queries_and_keys(next);
    commit_copies();

    // Every row sees a key: a candidate's row its [CLS], [CLS] a row of its step or the globals. Only row 15 of a
    // query's tile sees none; it holds garbage, which no other row reads, and is not written.
    top = quad_max(top) * scale;
    bottom = quad_max(bottom) * scale;
    float cls_factor = 0.f;
    if (cls_lane) {
      bottom = fmaxf(bottom, cls_top);
      cls_factor = exp2_fast(cls_top - bottom);  // @cls-factor
      cls_top = bottom;
    }
    float top_sum = 0.f, bottom_sum = 0.f;
#pragma unroll
    for (int b = 0; b < kTiles; b++) {
      float(&s)[4] = scores[b];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        s[e] = exp2_fast(fmaf(s[e], scale, -top));
        s[e + 2] = exp2_fast(fmaf(s[e + 2], scale, -bottom));
        top_sum += s[e];
        bottom_sum += s[e + 2];
      }
    }
    clear_row(sums, 0);
    scale_row(sums, 1, cls_factor);

    wait_for_copies<1>();  // @values-copied
    __syncwarp();  // @values-staged
    add_tiles<T, D, GLOBAL_TILES>(sums, scores, rows.global_values);
    add_tiles<T, D, BAND_TILES>(sums, scores + GLOBAL_TILES, rows.values);
    __syncwarp();  // all have read the values
    if (next < end) copy_values(next);
    commit_copies();

    top_sum = quad_sum(top_sum);
    bottom_sum = quad_sum(bottom_sum);
    cls_sum = cls_sum * cls_factor + bottom_sum;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int position = r0 + g + 8 * half;
      if (position >= end || (half && cls_lane)) continue;  // @written
      const float sum = half ? bottom_sum : top_sum;
      const long long row = tile.first_row + position;
      store_row<T, D>(out + row * model_dim, sums, half, reciprocal_fast(sum));
      if (params.lse && t == 0) params.lse[row * params.num_heads + head] = (half ? bottom : top) + log2_fast(sum);
    }
    r0 = next;
  } while (r0 < end);

  if (is_query) return;
  if (tile.num_tiles == 1) {
    if (!cls_lane) return;
    store_row<T, D>(out + (long long)tile.candidate * model_dim, sums, 1, reciprocal_fast(cls_sum));
    if (params.lse && t == 0) params.lse[(long long)tile.candidate * params.num_heads + head] = cls_top + log2_fast(cls_sum);
    return;
  }
  if (cls_lane) store_partial<D>(partial_of<D>(params, tile_number, head), sums, 1, cls_top, cls_sum);
  arrive_and_merge<T, D>(params, tile, tile_number, head);
}
