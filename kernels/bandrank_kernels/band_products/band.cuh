// Shared by the kernels of the band products: the layout of matrices in memory, and the work of a block.
//
//   s  rows of a matrix (length)      w  window       b  columns of the band, 2 w + 1       D  dims of a row
//
// A band is s x b, row by row; column j of row i belongs to rows i and i + j - w:
//
//   band_qk    A[i][j] = Q[i] . K[i + j - w]                       0 where i + j - w is outside 0 .. s - 1
//   band_pv    O[i] = sum over j of P[i][j] V[i + j - w]           such entries are never read

// Matrix m of a batch begins at left + m left_matrix, and its rows are left_row apart; all in elements.
struct BandParams {
  const void* left;   // Q
  const void* right;  // K or V
  void* band;         // A or P, contiguous
  void* sums;         // O, contiguous
  long long left_matrix, left_row, right_matrix, right_row;
  int length, window, dim;
  int num_tiles;  // row tiles of a matrix
  int num_parts;  // blocks that share a row tile: runs of columns of A, or slices of the dims of O
  int staged;     // whether A goes through shared memory
};

// Block n works on part `part` of row tile `tile` of matrix `matrix`: parts run fastest, for they read the same rows.
struct Work {
  int matrix, tile, part;
};

__device__ __forceinline__ Work work_of_block(const BandParams& p) {
  const int tiles = blockIdx.x / p.num_parts;
  return {tiles / p.num_tiles, tiles % p.num_tiles, static_cast<int>(blockIdx.x) % p.num_parts};
}

template <class T>
__device__ __forceinline__ const T* left_rows(const BandParams& p, int matrix) {
  return static_cast<const T*>(p.left) + matrix * p.left_matrix;
}

template <class T>
__device__ __forceinline__ const T* right_rows(const BandParams& p, int matrix) {
  return static_cast<const T*>(p.right) + matrix * p.right_matrix;
}

__device__ __forceinline__ bool is_inside(int row, int length) { return 0 <= row && row < length; }

// The index in P of the weight of row r in output row o; the two are at most w apart.
__device__ __forceinline__ long long weight_index(int o, int r, int window) {
  return o * (2ll * window + 1) + (r - o + window);
}
