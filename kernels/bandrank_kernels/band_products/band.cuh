// What the kernels of the band products share: how matrices lie in memory, and what a block works on.
//
//   s  rows of a matrix (length)      w  window       b  columns of the band, 2 w + 1       D  dims of a row
//
// A band is s x b, row by row; column j of row i belongs to rows i and i + j - w:
//
//   band_qk    A[i][j] = Q[i] . K[i + j - w]                       0 where i + j - w is outside 0 .. s - 1
//   band_pv    O[i] = sum over j of P[i][j] V[i + j - w]           such places are never read
//   band_ptv   X[k] = sum over i of P[i][k - i + w] V[i]           likewise
//
// band_pv and band_ptv are one kernel: output row o takes rows r = o - w .. o + w, with weight P[o][r - o + w] or, transposed,
// P[r][o - r + w].

// Matrix m of a batch begins at first + (m / num_inner) outer + (m % num_inner) inner; all in elements.
struct Rows {
  const void* first;
  long long outer, inner, row;
};

struct BandParams {
  Rows left;   // Q
  Rows right;  // K or V
  void* band;  // A or P, contiguous
  void* sums;  // O or X, contiguous
  int length, window, dim, num_inner;
  int num_tiles;  // row tiles of a matrix
  int num_parts;  // blocks that share a row tile: runs of columns of A, or slices of the dims of O
  int staged;     // whether A goes through shared memory
};

// Block n works on part `part` of row tile `tile` of matrix `matrix`: parts run fastest, for they read the same rows.
struct Place {
  int matrix, tile, part;
};

__device__ __forceinline__ Place place_of_block(const BandParams& p) {
  const int tiles = blockIdx.x / p.num_parts;
  return {tiles / p.num_tiles, tiles % p.num_tiles, static_cast<int>(blockIdx.x) % p.num_parts};
}

template <class T>
__device__ __forceinline__ const T* matrix_of(const Rows& rows, int num_inner, int matrix) {
  return static_cast<const T*>(rows.first) + matrix / num_inner * rows.outer + matrix % num_inner * rows.inner;
}

// Rows outside the sequence are none.
__device__ __forceinline__ bool exists(int row, int length) { return 0 <= row && row < length; }

// Where in P the weight of row r in output row o lies; the two are at most w apart.
template <bool kTransposed>
__device__ __forceinline__ long long weight_at(int o, int r, int window) {
  const long long columns = 2 * window + 1;
  return kTransposed ? r * columns + (o - r + window) : o * columns + (r - o + window);
}
