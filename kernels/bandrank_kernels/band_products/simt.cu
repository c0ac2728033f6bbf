// Band products without tensor cores: for float, double, any number of dims, any alignment, any GPU.
//
// A block has a tile of kTileRows rows. It stages rows of Q, K and V in shared memory, converted to the type of the
// sums, kSliceDims dims and kTileColumns columns of the band at a time:
//
//                 columns j0 ..                                K or V rows
//              +-----------+                    r0 - w + j0  ->  |
//   rows r0 -> |  A or P   |   entry (i, j) takes row i + j of   |   kTileRows + kTileColumns - 1 of them
//              +-----------+                                     |

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

// Rows first_row .. first_row + num_rows - 1 of a matrix, dims first_dim .. + kSliceDims - 1, into shared memory,
// and zeros where they are outside.
template <class T, class Sum>
__device__ __forceinline__ void stage_rows(Sum* shared, const T* matrix, long long row_stride, int first_row, int num_rows,
                                           int length, int first_dim, int dim) {
  for (int n = threadIdx.x; n < num_rows * kSliceDims; n += kThreads) {
    const int row = n / kSliceDims, d = n % kSliceDims;
    const bool inside = is_inside(first_row + row, length) && first_dim + d < dim;
    shared[row * kPitch<Sum> + d] = inside ? Sum(matrix[(first_row + row) * row_stride + first_dim + d]) : Sum(0);
  }
}

// A thread computes up to kEntries entries of the block's part of A; neighbours write neighbours.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<T>) band_qk_simt(const BandParams p) {
  using Sum = typename SumOf<T>::Type;
  constexpr int kEntries = kTileRows * kTileColumns / kThreads;
  constexpr int kUnroll = 32 / sizeof(Sum);
  DYNAMIC_SHARED(memory);
  Sum* queries = reinterpret_cast<Sum*>(memory);
  Sum* keys = queries + kTileRows * kPitch<Sum>;

  const Work work = work_of_block(p);
  const int band_columns = 2 * p.window + 1;
  const int first_row = work.tile * kTileRows, first_column = work.part * kTileColumns;
  const int columns = min_of(kTileColumns, band_columns - first_column);
  const int first_key = first_row + first_column - p.window;
  const T* query = left_rows<T>(p, work.matrix);
  const T* key = right_rows<T>(p, work.matrix);

  Sum sums[kEntries] = {};
  for (int d = 0; d < p.dim; d += kSliceDims) {
    stage_rows<T>(queries, query, p.left_row, first_row, kTileRows, p.length, d, p.dim);
    stage_rows<T>(keys, key, p.right_row, first_key, kTileRows + columns - 1, p.length, d, p.dim);
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
  T* band = static_cast<T*>(p.band) + static_cast<long long>(work.matrix) * p.length * band_columns;
#pragma unroll
  for (int n = 0; n < kEntries; n++) {
    const int entry = threadIdx.x + n * kThreads, row = entry / columns, column = entry % columns;
    if (row >= kTileRows || first_row + row >= p.length) break;
    const bool real = is_inside(first_key + row + column, p.length);
    band[static_cast<long long>(first_row + row) * band_columns + first_column + column] = real ? T(sums[n]) : T(0.f);
  }
}

// A thread computes kWidth neighbouring dims of one output row.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<T>) band_pv_simt(const BandParams p) {
  using Sum = typename SumOf<T>::Type;
  constexpr int kWidth = kTileRows * kSliceDims / kThreads;
  DYNAMIC_SHARED(memory);
  Sum* values = reinterpret_cast<Sum*>(memory);
  Sum* weights = values + kReach * kPitch<Sum>;  // kTileRows x kTileColumns, the pitch of values

  const Work work = work_of_block(p);
  const int band_columns = 2 * p.window + 1;
  const int first_row = work.tile * kTileRows, first_dim = work.part * kSliceDims;
  const T* value = right_rows<T>(p, work.matrix);
  const T* band = static_cast<const T*>(p.band) + static_cast<long long>(work.matrix) * p.length * band_columns;
  const int row = threadIdx.x / (kThreads / kTileRows), dims = threadIdx.x % (kThreads / kTileRows) * kWidth;

  Sum sums[kWidth] = {};
  for (int first_column = 0; first_column < band_columns; first_column += kTileColumns) {
    const int columns = min_of(kTileColumns, band_columns - first_column);
    const int first_value = first_row + first_column - p.window;
    stage_rows<T>(values, value, p.right_row, first_value, kTileRows + columns - 1, p.length, first_dim, p.dim);
    for (int n = threadIdx.x; n < kTileRows * columns; n += kThreads) {
      const int i = n / columns, j = n % columns, o = first_row + i, r = first_value + i + j;
      const bool real = o < p.length && is_inside(r, p.length);
      weights[i * kPitch<Sum> + j] = real ? Sum(band[weight_index(o, r, p.window)]) : Sum(0);
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
  T* out = static_cast<T*>(p.sums) + (static_cast<long long>(work.matrix) * p.length + first_row + row) * p.dim + first_dim;
#pragma unroll
  for (int i = 0; i < kWidth; i++)
    if (first_dim + dims + i < p.dim) out[dims + i] = T(sums[i]);
}
