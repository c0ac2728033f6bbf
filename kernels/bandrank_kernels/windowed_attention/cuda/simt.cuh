// Windowed attention without tensor cores: for float32, and for cards before sm_80. Each row goes through its keys one by
// one with an online softmax. All arithmetic is float32.

template <class T, int D>
__global__ void __launch_bounds__(kQuadThreads) simt_forward(const __grid_constant__ AttentionParams params) {
  constexpr int kLaneDims = D / 4;  // numbers of a row that a lane has
  const int t = threadIdx.x % 4;
  const int tile_number = blockIdx.x / params.num_heads, head = blockIdx.x % params.num_heads;
  const Tile tile = load_tile(params.tiles, tile_number);
  if (tile.candidate == kUnusedTile) return;

  const bool is_query = tile.is_query(), is_cls = threadIdx.x / 4 == kQuadRows;
  const int position = tile.begin + threadIdx.x / 4, end = min_of(tile.begin + kQuadRows, tile.num_rows);
  const long long row = is_cls ? tile.candidate : tile.first_row + position;
  const int model_dim = params.num_heads * D, w = params.window;
  const T* const q = static_cast<const T*>(params.qkv) + head * D + t * kLaneDims;
  const T* const k = q + model_dim;
  const T* const v = k + model_dim;

  float top = kHidden, sum = 0.f, query[kLaneDims], value[kLaneDims] = {};
  auto attend = [&](long long key) {
    float other[kLaneDims];
    load_numbers(other, k + key * params.row_stride);
    const float s = row_sum(dot(query, other)) * params.scale;
    const float higher = fmaxf(top, s), factor = exp2_fast(top - higher), weight = exp2_fast(s - higher);
    top = higher;
    sum = fmaf(sum, factor, weight);
    load_numbers(other, v + key * params.row_stride);
#pragma unroll
    for (int i = 0; i < kLaneDims; i++) value[i] = fmaf(value[i], factor, weight * other[i]);
  };

  const bool works = is_cls ? !is_query : position < end;
  if (works) {
    load_numbers(query, q + row * params.row_stride);
    const int globals = is_cls && tile.begin > 0 ? 0 : tile.query_rows + !is_query;  // @globals
    for (int number = 0; number < globals; number++) attend(tile.global_row(number + is_query));
    // [CLS] sees the rows of its tile here, and those of the other tiles in their blocks.
    const int first = is_cls ? tile.begin : max_of(0, position - w);
    const int last = is_cls ? end - 1 : min_of(tile.num_rows - 1, position + w);  // @last-key
    for (int key = first; !is_query && key <= last; key++) attend(tile.first_row + key);
  }
  if (works && (!is_cls || tile.num_tiles == 1)) {  // @one-tile
#pragma unroll
    for (int i = 0; i < kLaneDims; i++)
      static_cast<T*>(params.out)[row * model_dim + head * D + t * kLaneDims + i] = T(value[i] / sum);
    if (params.lse && t == 0) params.lse[row * params.num_heads + head] = top + log2f(sum);
  }

  if (is_query || tile.num_tiles == 1 || threadIdx.x / 32 < kQuadThreads / 32 - 1) return;
  if (is_cls) {
    float* const partial = partial_of<D>(params, tile_number, head);
#pragma unroll
    for (int i = 0; i < kLaneDims; i++) partial[2 + t * kLaneDims + i] = value[i];
    if (t == 0) {
      partial[0] = top;
      partial[1] = sum;
    }
  }
  arrive_and_merge<T, D>(params, tile, tile_number, head);
}
