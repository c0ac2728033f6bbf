// The gradients of the queries, keys and values of windowed attention, in float32 arithmetic. With `towards` the gradient
// of a row of the result, along which delta = sum of towards * out, and P = exp2(scores - lse):
//
//   dS = P (towards V^T - delta),   dQ = dS K / sqrt(D),   dK = dS^T Q / sqrt(D),   dV = P^T towards
//
// Two launches without atomics, every sum in a fixed order, so that bits repeat:
//
//   gradient_rows     31 rows of a candidate and its [CLS], or rows of a query, go through their keys: dQ, delta.
//                     What they add to the globals' gradients is summed over the block and left as partials, and so is dQ of
//                     [CLS], whose keys are spread over the blocks of the candidate.
//   gradient_columns  31 keys of a candidate go through the rows that see them, those of the window and [CLS]: dK, dV.
//                     Further blocks sum up the partials, one [CLS] or query row each.
//
//   partials of a block   vector 0: dQ of [CLS];  1 + 2 g, 2 + 2 g: dK and dV of global number g

struct GradientParams {
  const void* qkv;      // (num_rows, 3, H, D), rows row_stride numbers apart, each at a 16-byte address
  const void* out;      // (num_rows, H, D), like all that follow contiguous
  const void* towards;  // (num_rows, H, D)
  void* result;         // (num_rows, 3, H, D)
  const float* lse;     // (num_rows, H)
  float* delta;         // (num_rows, H) scratch
  const int4* tiles;    // (num_tiles, 2): Tile
  const int* first_vectors;  // (num_tiles,) the first vector of each tile's partials
  float* partials;           // (num_vectors, H, D) scratch
  const int4* totals;        // (num_totals, 2): Total
  long long row_stride;
  int num_heads;
  int window;
  int column_blocks;  // blocks of gradient_columns that have keys; the others have totals
  float scale;        // log2(e) / sqrt(D)
  float root;         // 1 / sqrt(D)
};

// A row whose gradients are sums of partials: `count` of them `stride` vectors apart, then `more_count`.
struct Total {
  int row;
  int first_part;  // 0: dQ, dK and dV are summed; 1: dK and dV, which begin at the vectors given here
  int first, count, stride, more_first, more_count;
};

constexpr int kGlobalsAtOnce = 16;

template <class T, int D>
__global__ void __launch_bounds__(kQuadThreads) gradient_rows(const __grid_constant__ GradientParams params) {
  constexpr int kLaneDims = D / 4;
  DYNAMIC_SHARED(shared);
  float* const queries = reinterpret_cast<float*>(shared);  // (32, D)
  float* const rows_towards = queries + (kQuadRows + 1) * D;
  float* const weights = rows_towards + (kQuadRows + 1) * D;  // (32, kGlobalsAtOnce): P
  float* const inners = weights + (kQuadRows + 1) * kGlobalsAtOnce;  // dS

  const int t = threadIdx.x % 4, slot = threadIdx.x / 4;
  const int tile_number = blockIdx.x / params.num_heads, head = blockIdx.x % params.num_heads;
  const Tile tile = load_tile(params.tiles, tile_number);
  const bool is_query = tile.is_query(), is_cls = slot == kQuadRows;
  const int position = tile.begin + slot, end = min_of(tile.begin + kQuadRows, tile.num_rows), w = params.window;
  const long long row = is_cls ? tile.candidate : tile.first_row + position;
  const int model_dim = params.num_heads * D, first_dim = head * D + t * kLaneDims;
  const T* const q = static_cast<const T*>(params.qkv) + first_dim;
  const T* const k = q + model_dim;
  const T* const v = k + model_dim;
  float* const partials = params.partials + ((long long)params.first_vectors[tile_number] * params.num_heads + head) * D;

  const bool works = is_cls ? !is_query : position < end;
  float query[kLaneDims] = {}, towards[kLaneDims] = {}, sums[kLaneDims] = {}, delta = 0.f, lse = 0.f;
  // Computes P and dS of this row and a key.
  auto attend = [&](long long key, float& weight, float& inner) {
    float keys[kLaneDims], values[kLaneDims];
    load_numbers(keys, k + key * params.row_stride);
    load_numbers(values, v + key * params.row_stride);
    weight = exp2_fast(fmaf(row_sum(dot(query, keys)), params.scale, -lse));
    inner = weight * (row_sum(dot(towards, values)) - delta);  // @delta
    add_scaled(sums, inner, keys);
  };

  if (works) {
    float out[kLaneDims];
    load_numbers(query, q + row * params.row_stride);
    load_numbers(towards, static_cast<const T*>(params.towards) + row * model_dim + first_dim);
    load_numbers(out, static_cast<const T*>(params.out) + row * model_dim + first_dim);
    delta = row_sum(dot(towards, out));
    lse = params.lse[row * params.num_heads + head];
    // [CLS] sees the rows of its tile here, and those of the other tiles in their blocks.
    const int first = is_cls ? tile.begin : max_of(0, position - w);  // @first-key
    const int last = is_cls ? end - 1 : min_of(tile.num_rows - 1, position + w);  // @last-key
    float weight, inner;
    for (int key = first; !is_query && key <= last; key++) attend(tile.first_row + key, weight, inner);
    if (t == 0 && (!is_cls || tile.begin == 0)) params.delta[row * params.num_heads + head] = delta;  // @one-delta
  }
#pragma unroll
  for (int i = 0; i < kLaneDims; i++) {
    queries[slot * D + t * kLaneDims + i] = query[i];
    rows_towards[slot * D + t * kLaneDims + i] = towards[i];
  }

  const bool sees_globals = works && !(is_cls && tile.begin > 0);  // @sees-globals
  const int globals = tile.query_rows + 1;
  for (int chunk = 0; chunk < globals; chunk += kGlobalsAtOnce) {
    for (int n = 0; n < kGlobalsAtOnce; n++) {
      const int number = chunk + n;
      float weight = 0.f, inner = 0.f;
      const bool sees = sees_globals && number >= int(is_query) && number < globals;  // @query-globals
      if (sees) attend(tile.global_row(number), weight, inner);
      if (t == 0) {
        weights[slot * kGlobalsAtOnce + n] = weight;
        inners[slot * kGlobalsAtOnce + n] = inner;
      }
    }
    __syncthreads();  // @factors the factors are there
    const int vectors = 2 * min_of(kGlobalsAtOnce, globals - chunk);
    for (int i = threadIdx.x; i < vectors * D; i += kQuadThreads) {
      const int d = i % D, vector = i / D;
      const float* const factor = (vector % 2 ? weights : inners) + vector / 2;
      const float* const number = (vector % 2 ? rows_towards : queries) + d;
      float sum = 0.f;
      for (int r = 0; r <= kQuadRows; r++) sum = fmaf(factor[r * kGlobalsAtOnce], number[r * D], sum);
      const long long index = 1 + 2 * chunk + vector;  // @vectors
      partials[index * model_dim + d] = vector % 2 ? sum : sum * params.root;  // @root
    }
    __syncthreads();  // @factors-read the factors were read
  }

  if (!works) return;
  if (!is_cls) {
    store_numbers(static_cast<T*>(params.result) + row * 3 * model_dim + first_dim, sums, params.root);
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneDims; i++) partials[t * kLaneDims + i] = sums[i] * params.root;
}

// A part of a Total is D numbers; the threads of a number share its partials, and their sums are added in order.
template <class T, int D>
__device__ __forceinline__ void sum_partials(const GradientParams& params, const Total& total, int head, float* shared) {
  constexpr int kSlices = kQuadThreads / D;
  const int d = threadIdx.x % D, slice = threadIdx.x / D;
  const int all = total.count + total.more_count;  // @all-parts
  const int begin = int((long long)all * slice / kSlices), end = int((long long)all * (slice + 1) / kSlices);
  for (int part = total.first_part; part < 3; part++) {
    float sum = 0.f;
    for (int n = begin; n < end; n++) {
      const int more = (n - total.count) * total.stride;  // @more
      const int vector = n < total.count ? total.first + n * total.stride : total.more_first + more;
      sum += params.partials[((long long)(vector + part - total.first_part) * params.num_heads + head) * D + d];
    }
    shared[slice * D + d] = sum;
    __syncthreads();  // @slices the slices are there
    if (slice == 0) {
      for (int other = 1; other < kSlices; other++) sum += shared[other * D + d];  // @slices-summed
      static_cast<T*>(params.result)[(((long long)total.row * 3 + part) * params.num_heads + head) * D + d] = T(sum);
    }
    __syncthreads();  // @slices-read the slices were read
  }
}

template <class T, int D>
__global__ void __launch_bounds__(kQuadThreads) gradient_columns(const __grid_constant__ GradientParams params) {
  constexpr int kLaneDims = D / 4;
  DYNAMIC_SHARED(shared);
  const int head = blockIdx.x % params.num_heads;
  const int beyond = int(blockIdx.x) - params.column_blocks;
  if (beyond >= 0) {
    const int number = beyond / params.num_heads;
    const int4 a = params.totals[2 * number], b = params.totals[2 * number + 1];
    sum_partials<T, D>(params, {a.x, a.y, a.z, a.w, b.x, b.y, b.z}, head, reinterpret_cast<float*>(shared));
    return;
  }

  const int t = threadIdx.x % 4, slot = threadIdx.x / 4;
  const Tile tile = load_tile(params.tiles, blockIdx.x / params.num_heads);
  const int position = tile.begin + slot, w = params.window;
  if (slot == kQuadRows || position >= tile.num_rows) return;
  const int model_dim = params.num_heads * D, first_dim = head * D + t * kLaneDims;
  const long long column = tile.first_row + position;
  const T* const q = static_cast<const T*>(params.qkv) + first_dim;
  const T* const k = q + model_dim;
  const T* const v = k + model_dim;

  float key[kLaneDims], value[kLaneDims], key_sums[kLaneDims] = {}, value_sums[kLaneDims] = {};
  load_numbers(key, k + column * params.row_stride);
  load_numbers(value, v + column * params.row_stride);
  auto gather = [&](long long row) {
    float query[kLaneDims], towards[kLaneDims];
    load_numbers(query, q + row * params.row_stride);
    load_numbers(towards, static_cast<const T*>(params.towards) + row * model_dim + first_dim);
    const long long number = row * params.num_heads + head;
    const float weight = exp2_fast(fmaf(row_sum(dot(query, key)), params.scale, -params.lse[number]));
    add_scaled(key_sums, weight * (row_sum(dot(towards, value)) - params.delta[number]), query);
    add_scaled(value_sums, weight, towards);
  };
  gather(tile.candidate);  // @cls
  const int last = min_of(tile.num_rows - 1, position + w);  // @last-row
  for (int row = max_of(0, position - w); row <= last; row++) gather(tile.first_row + row);

  T* const result = static_cast<T*>(params.result) + column * 3 * model_dim + first_dim;
  store_numbers(result + model_dim, key_sums, params.root);
  store_numbers(result + 2 * model_dim, value_sums, 1.f);
}
