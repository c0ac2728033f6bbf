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
// maximum, sum and values from step to step. No shared memory, no block barrier.
//
// BAND_TILES, GLOBAL_TILES: tiles of 8 keys, 8 BAND_TILES >= 15 + 2w and 8 GLOBAL_TILES > rows of the longest query.

constexpr int kStepRows = 15;
constexpr int kHeadsPerBlock = 4;  // their rows are 256 consecutive bytes at D = 32

template <class T, int D, int BAND_TILES, int GLOBAL_TILES, int TILE_ROWS, int MIN_BLOCKS>
__global__ void __launch_bounds__(32 * kHeadsPerBlock, MIN_BLOCKS)
    narrow_forward(const __grid_constant__ AttentionParams params) {
  static_assert(TILE_ROWS % kStepRows == 0 && GLOBAL_TILES % 2 == 0);
  constexpr int kTiles = GLOBAL_TILES + BAND_TILES;
  // Where they fit in registers, the globals are read once for the whole tile; else in each step, out of L1.
  constexpr bool kKeepGlobals = GLOBAL_TILES * D <= 128;

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int head_groups = (params.num_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  const int tile_number = blockIdx.x / head_groups;
  const int head = blockIdx.x % head_groups * kHeadsPerBlock + threadIdx.x / 32;
  const Tile tile = load_tile(params.tiles, tile_number);
  if (head >= params.num_heads || tile.candidate == kUnusedTile) return;

  const bool is_query = tile.is_query();
  const bool cls_lane = g == 7;  // its row g + 8 is [CLS]
  const int num_rows = tile.num_rows, end = min_of(tile.begin + TILE_ROWS, num_rows);
  const int band_rows = is_query ? 0 : num_rows, w = params.window;
  const float scale = params.scale;
  const long long stride = params.row_stride;
  const int model_dim = params.num_heads * D;
  const T* const q = static_cast<const T*>(params.qkv) + head * D + 8 * t;
  const T* const k = q + model_dim;
  const T* const v = static_cast<const T*>(params.qkv) + 2 * model_dim + head * D + g * (D / 8);
  T* const out = static_cast<T*>(params.out) + head * D + t * (D / 4);

  auto load_global_key = [&](int b) { return load_slices<T, D>(k + tile.global_row(8 * b + g) * stride); };
  auto load_global_values = [&](Segment<D>(&values)[4], int b) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      values[i] = load_segment<T, D>(v + tile.global_row(16 * b + 2 * t + i % 2 + 8 * (i / 2)) * stride);
  };
  Slices<D> global_keys[kKeepGlobals ? GLOBAL_TILES : 1];
  Segment<D> global_values[kKeepGlobals ? GLOBAL_TILES / 2 : 1][4];
  if constexpr (kKeepGlobals) {
#pragma unroll
    for (int b = 0; b < GLOBAL_TILES; b++) global_keys[b] = load_global_key(b);
#pragma unroll
    for (int b = 0; b < GLOBAL_TILES / 2; b++) load_global_values(global_values[b], b);
  }

  float cls_top = kHidden, cls_sum = 0.f;
  Output<D> sums;
  clear_row(sums, 1);

  int r0 = tile.begin;
  do {  // once for an empty candidate, whose [CLS] sees the globals
    // Rows beyond the candidate are read as its last one, and not written.
    auto row_of = [&](int position) { return tile.first_row + clamp(position, 0, max_of(num_rows - 1, 0)); };
    const Slices<D> top_query = load_slices<T, D>(q + row_of(r0 + g) * stride);
    const Slices<D> bottom_query = load_slices<T, D>(q + (cls_lane ? tile.any_row() : row_of(r0 + g + 8)) * stride);
    float scores[kTiles][4];
    float top = kHidden, bottom = kHidden;  // maxima of rows g and g + 8

    // Number 0 is no key of a query row.
    const int first_global = is_query, globals = tile.query_rows + 1 - first_global;
    const int bottom_globals = !cls_lane ? globals : r0 == 0 && !is_query ? globals : 0;  // @cls-globals
#pragma unroll
    for (int b = 0; b < GLOBAL_TILES; b++) {
      float(&s)[4] = scores[b];
      score<T, D>(s, top_query, bottom_query, kKeepGlobals ? global_keys[kKeepGlobals ? b : 0] : load_global_key(b));
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
      score<T, D>(s, top_query, bottom_query, load_slices<T, D>(k + row_of(band + 8 * b + g) * stride));
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

#pragma unroll
    for (int b = 0; b < GLOBAL_TILES / 2; b++) {
      if constexpr (!kKeepGlobals) load_global_values(global_values[0], b);
      add_values<T, D>(sums, scores[2 * b], scores[2 * b + 1], global_values[kKeepGlobals ? b : 0]);
    }
    auto load_band_value = [&](int i) { return load_segment<T, D>(v + row_of(band + i) * stride); };
#pragma unroll
    for (int b = 0; b < BAND_TILES / 2; b++) {
      const int i = 16 * b + 2 * t;
      const Segment<D> values[4] = {load_band_value(i), load_band_value(i + 1), load_band_value(i + 8), load_band_value(i + 9)};
      add_values<T, D>(sums, scores[GLOBAL_TILES + 2 * b], scores[GLOBAL_TILES + 2 * b + 1], values);
    }
    if constexpr (BAND_TILES % 2) {
      const int i = 8 * (BAND_TILES - 1) + 2 * t;
      add_values<T, D>(sums, scores[kTiles - 1], load_band_value(i), load_band_value(i + 1));
    }

    top_sum = quad_sum(top_sum);
    bottom_sum = quad_sum(bottom_sum);
    cls_sum = cls_sum * cls_factor + bottom_sum;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int position = r0 + g + 8 * half;
      if (position >= end || (half && cls_lane)) continue;  // @written
      const float sum = half ? bottom_sum : top_sum;
      const long long row = tile.first_row + position;
      store_row<T, D>(out + row * model_dim, sums, half, 1.f / sum);
      if (params.lse && t == 0) params.lse[row * params.num_heads + head] = (half ? bottom : top) + log2f(sum);
    }
    r0 += kStepRows;
  } while (r0 < end);

  if (is_query) return;
  if (tile.num_tiles == 1) {
    if (!cls_lane) return;
    store_row<T, D>(out + (long long)tile.candidate * model_dim, sums, 1, 1.f / cls_sum);
    if (params.lse && t == 0) params.lse[(long long)tile.candidate * params.num_heads + head] = cls_top + log2f(cls_sum);
    return;
  }
  if (cls_lane) store_partial<D>(partial_of<D>(params, tile_number, head), sums, 1, cls_top, cls_sum);
  arrive_and_merge<T, D>(params, tile, tile_number, head);
}
