// The arguments of the forward kernels of windowed attention, and their layout in memory.
//
//   T storage type, D head_dim, H num_heads, w window
//   tile: consecutive rows of one candidate, or of one query, that a block or warp computes
//   globals: the keys that every row of a candidate sees, its [CLS] (number 0) and the rows of its query (1, 2, ...)
//
// The pattern is the sparse cross-encoder's (Schlatt et al. 2024, section 3):
//   [CLS] of a candidate -> globals, all rows of the candidate
//   row i of a candidate -> globals, rows i - w .. i + w of the candidate
//   row of a query       -> the rows of its query
//
// Log-sum-exps and maxima are in base 2: exp(x) is computed as exp2(x log2(e)), and the factor is part of the scale.

struct AttentionParams {
  const void* qkv;  // (num_rows, 3, H, D), rows row_stride numbers apart, each at a 16-byte address
  void* out;        // (num_rows, H, D), 16-byte aligned
  float* lse;       // (num_rows, H), or null
  const int4* tiles;  // (num_tiles, 2): Tile
  float* partials;    // (num_tiles, H, D + 2) scratch: [CLS] of candidates with several tiles
  int* arrivals;      // (num_candidates, H), zero before a launch and after it
  long long row_stride;
  int num_heads;
  int window;
  int stage_rows;  // wide kernel: keys that shared memory holds at once; even
  float scale;     // log2(e) / sqrt(D)
};

constexpr int kQueryTile = -1;
constexpr int kUnusedTile = -2;  // to fill a grid of fixed size

struct Tile {
  int candidate;   // its number is also the row of its [CLS]; or kQueryTile, kUnusedTile
  int first_row;   // row number of the candidate's first row (of its [CLS] if it is empty), or of the query's
  int num_rows;    // of the whole candidate, or of the whole query
  int begin;       // the tile's first row, counted from first_row
  int query_row;   // row number of the query's first row
  int query_rows;  // rows of the query
  int index;       // of this tile among the candidate's
  int num_tiles;   // of the candidate

  __device__ bool is_query() const { return candidate == kQueryTile; }
  // A row that may be read instead of a global that does not exist.
  __device__ int any_row() const { return is_query() ? query_row : candidate; }
  __device__ int global_row(int number) const {
    return number >= 1 && number <= query_rows ? query_row + number - 1 : any_row();
  }
};

__device__ __forceinline__ Tile load_tile(const int4* tiles, int number) {
  const int4 a = tiles[2 * number], b = tiles[2 * number + 1];
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}
