// Band products without tensor cores: for float, double, any number of dims, any alignment, any GPU.
//
// A block has a tile of kTileRows rows. It stages what it needs of Q, K and V in shared memory, converted to the type of the
// sums, kSliceDims dims and kTileColumns columns of the band at a time:
//
//                 columns j0 ..                                K or V rows
//              +-----------+                    r0 - w + j0  ->  |
//   rows r0 -> |  A or P   |   entry (i, j) takes row i + j of   |   kTileRows + kTileColumns - 1 of them
//              +-----------+                                     |
//
// kVector elements are read at a time: 16 bytes, or one where rows do not come in whole 16-byte pieces.

constexpr int kThreads = 256;
constexpr int kTileRows = 32;
constexpr int kTileColumns = 32;
constexpr int kSliceDims = 32;
constexpr int kReach = kTileRows + kTileColumns - 1;

// Leaves 80 registers, 128 for double: with nothing said, ptxas saves registers by spilling.
template <class T> constexpr int kBlocksPerSm = sizeof(T) == 8 ? 2 : 3;

template <class T> struct SumOf { using Type = float; };
template <> struct SumOf<double> { using Type = double; };

// Rows of shared memory are 16 bytes longer than their numbers, so that lanes that read down a column meet other banks.
template <class Sum> constexpr int kPitch = kSliceDims + 16 / sizeof(Sum);

// Rows first_row .. first_row + num_rows - 1 of a matrix, dims first_dim .. + kSliceDims - 1, into shared memory;
// zeros for what is outside.
template <class T, int kVector, class Sum>
__device__ __forceinline__ void stage_rows(Sum* shared, const T* matrix, long long row_stride, int first_row, int num_rows,
                                           int length, int first_dim, int dim) {
  constexpr int kPieces = kSliceDims / kVector;
  for (int n = threadIdx.x; n < num_rows * kPieces; n += kThreads) {
    const int row = n / kPieces, place = n % kPieces * kVector;
    Sum* to = shared + row * kPitch<Sum> + place;
    const bool inside = exists(first_row + row, length) && first_dim + place < dim;
    const T* from = matrix + (first_row + row) * row_stride + first_dim + place;
    if constexpr (kVector == 1) {
      to[0] = inside ? Sum(from[0]) : Sum(0);
    } else {
      const uint4 piece = inside ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
      const T* elements = reinterpret_cast<const T*>(&piece);
#pragma unroll
      for (int i = 0; i < kVector; i++) to[i] = Sum(elements[i]);
    }
  }
}

// A thread computes up to kEntries entries of the block's part of A; neighbours write neighbours.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<T>) band_qk_simt(const BandParams p) {
  using Sum = typename SumOf<T>::Type;
  constexpr int kEntries = kTileRows * kTileColumns / kThreads;
  constexpr int kUnroll = 32 / sizeof(Sum);
  DYNAMIC_SHARED(memory);
  Sum* queries = reinterpret_cast<Sum*>(memory);
  Sum* keys = queries + kTileRows * kPitch<Sum>;

  const Place place = place_of_block(p);
  const int band_columns = 2 * p.window + 1;
  const int first_row = place.tile * kTileRows, first_column = place.part * kTileColumns;
  const int columns = min_of(kTileColumns, band_columns - first_column);
  const int first_key = first_row + first_column - p.window;
  const T* query = matrix_of<T>(p.left, p.num_inner, place.matrix);
  const T* key = matrix_of<T>(p.right, p.num_inner, place.matrix);

  Sum sums[kEntries] = {};
  for (int d = 0; d < p.dim; d += kSliceDims) {
    stage_rows<T, kVector>(queries, query, p.left.row, first_row, kTileRows, p.length, d, p.dim);
    stage_rows<T, kVector>(keys, key, p.right.row, first_key, kTileRows + columns - 1, p.length, d, p.dim);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kEntries; n++) {
      const int entry = threadIdx.x + n * kThreads, row = entry / columns, column = entry % columns;
      if (row >= kTileRows) break;
      const Sum *q = queries + row * kPitch<Sum>, *k = keys + (row + column) * kPitch<Sum>;
#pragma unroll kUnroll
      for (int i = 0; i < kSliceDims; i++) sums[n] += q[i] * k[i];
    }
    __syncthreads();
  }
  T* band = static_cast<T*>(p.band) + static_cast<long long>(place.matrix) * p.length * band_columns;
#pragma unroll
  for (int n = 0; n < kEntries; n++) {
    const int entry = threadIdx.x + n * kThreads, row = entry / columns, column = entry % columns;
    if (row >= kTileRows || first_row + row >= p.length) break;
    const bool real = exists(first_key + row + column, p.length);
    band[static_cast<long long>(first_row + row) * band_columns + first_column + column] = real ? T(sums[n]) : T(0.f);
  }
}

// A thread computes kWidth neighbouring dims of one output row.
template <class T, int kVector, bool kTransposed>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<T>) band_sums_simt(const BandParams p) {
  using Sum = typename SumOf<T>::Type;
  constexpr int kWidth = kTileRows * kSliceDims / kThreads;
  DYNAMIC_SHARED(memory);
  Sum* values = reinterpret_cast<Sum*>(memory);
  Sum* weights = values + kReach * kPitch<Sum>;  // kTileRows x kTileColumns, the pitch of values

  const Place place = place_of_block(p);
  const int band_columns = 2 * p.window + 1;
  const int first_row = place.tile * kTileRows, first_dim = place.part * kSliceDims;
  const T* value = matrix_of<T>(p.right, p.num_inner, place.matrix);
  const T* band = static_cast<const T*>(p.band) + static_cast<long long>(place.matrix) * p.length * band_columns;
  const int row = threadIdx.x / (kThreads / kTileRows), dims = threadIdx.x % (kThreads / kTileRows) * kWidth;

  Sum sums[kWidth] = {};
  for (int first_column = 0; first_column < band_columns; first_column += kTileColumns) {
    const int columns = min_of(kTileColumns, band_columns - first_column);
    const int first_value = first_row + first_column - p.window;
    stage_rows<T, kVector>(values, value, p.right.row, first_value, kTileRows + columns - 1, p.length, first_dim, p.dim);
    for (int n = threadIdx.x; n < kTileRows * columns; n += kThreads) {
      const int i = n / columns, j = n % columns, o = first_row + i, r = first_value + i + j;
      const bool real = o < p.length && exists(r, p.length);
      weights[i * kPitch<Sum> + j] = real ? Sum(band[weight_at<kTransposed>(o, r, p.window)]) : Sum(0);
    }
    __syncthreads();
    for (int j = 0; j < columns; j++) {
      const Sum weight = weights[row * kPitch<Sum> + j];
#pragma unroll
      for (int i = 0; i < kWidth; i++) sums[i] += weight * values[(row + j) * kPitch<Sum> + dims + i];
    }
    __syncthreads();
  }
  if (first_row + row >= p.length) return;
  T* out = static_cast<T*>(p.sums) + (static_cast<long long>(place.matrix) * p.length + first_row + row) * p.dim + first_dim;
#pragma unroll
  for (int i = 0; i < kWidth; i++)
    if (first_dim + dims + i < p.dim) out[dims + i] = T(sums[i]);
}
