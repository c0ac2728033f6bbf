// Band products of 16-bit numbers on tensor cores (compute capability 8.0), sums in float.
//
//   s  rows of a matrix (length)      w  window       b  columns of the band, 2 w + 1
//
// A band is s x b, row by row; column j of row i belongs to rows i and i + j - w:
//
//   band_qk    A[i][j] = Q[i] . K[i + j - w]                       0 where i + j - w is outside 0 .. s - 1
//   band_pv    O[i] = sum over j of P[i][j] V[i + j - w]           such entries are never read
//
// A warp has 16 rows, a block of kWarps warps 16 kWarps consecutive ones. Rows have 32 kSlices dims, in whole 16-byte pieces.
// lane = 4 g + t; fragments are those of mma.sync m16n8k16 in the PTX manual. A dot product does not care about the order of its
// terms, nor a product about the order of its columns, so the lanes read what lies together:
//
//   Q, K  lane (g, t) holds dims 8 t .. 8 t + 7 of each slice of row g: one 16-byte load, two steps of 16 dims.
//   V     lane (g, t) holds dims 4 g .. 4 g + 3 of each slice of rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9: 8-byte loads;
//         column g of 8-column tile n is dim 4 g + n, so that lane (g, t) ends with dims 8 t .. 8 t + 7 of rows g and g + 8.
//
// Rows that do not exist are read as the nearest that does: their products are dropped or their weights are 0. An infinity or
// NaN in V reaches all output rows of the tiles that read it.

// Matrix m of a batch begins at left + m left_matrix, and its rows are left_row apart; all in elements.
struct BandParams {
  const void* left;   // Q
  const void* right;  // K or V
  void* band;         // A or P, contiguous
  void* sums;         // O, contiguous
  long long left_matrix, left_row, right_matrix, right_row;
  int length, window;
  int num_tiles;  // of 64 rows of a matrix, one to a block
  int staged;     // whether A goes through shared memory
};

constexpr int kWarps = 4;
constexpr int kWarpRows = 16;
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kElements = 8;  // in 16 bytes

template <class T>
__device__ __forceinline__ const T* rows_of(const void* first, int matrix, long long step) {
  return static_cast<const T*>(first) + matrix * step;
}

__device__ __forceinline__ bool is_inside(int row, int length) { return 0 <= row && row < length; }

template <class T>
__device__ __forceinline__ uint4 load_16_bytes(const T* p) { return *reinterpret_cast<const uint4*>(p); }

// Copies `count` numbers from shared memory to `to`, both `lead` numbers after a 16-byte boundary.
template <class T>
__device__ __forceinline__ void copy_out(const T* shared, T* to, int count, int lead) {
  for (int n = static_cast<int>(threadIdx.x) * kElements - lead; n < count; n += kWarps * 32 * kElements) {
    if (n >= 0 && n + kElements <= count) {
      *reinterpret_cast<uint4*>(to + n) = load_16_bytes(shared + n);
    } else {
      for (int i = max_of(n, 0); i < min_of(n + kElements, count); i++) to[i] = shared[i];
    }
  }
}

// The block's rows of A are one run of numbers, put together in shared memory and written 16 bytes at a time; where the run
// is too long for shared memory (p.staged = 0), each lane writes its numbers to A.
template <class T, int kSlices>
__global__ void __launch_bounds__(kWarps * 32) band_qk(const BandParams p) {
  DYNAMIC_SHARED(memory);
  const int matrix = blockIdx.x / p.num_tiles, tile = blockIdx.x % p.num_tiles;
  const int w = p.window, columns = 2 * w + 1;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int block_row = tile * kBlockRows, in_block = threadIdx.x / 32 * kWarpRows, r0 = block_row + in_block;
  T* band = static_cast<T*>(p.band) + (static_cast<long long>(matrix) * p.length + block_row) * columns;
  const int lead = static_cast<int>(reinterpret_cast<size_t>(band) / sizeof(T) % kElements);
  T* out = p.staged ? reinterpret_cast<T*>(memory) + lead : band;

  if (r0 < p.length) {
    const int last = p.length - 1;
    const T* query = rows_of<T>(p.left, matrix, p.left_matrix) + 8 * t;
    const T* key = rows_of<T>(p.right, matrix, p.right_matrix) + 8 * t;
    uint4 low[kSlices], high[kSlices];  // rows g and g + 8
#pragma unroll
    for (int i = 0; i < kSlices; i++) {
      low[i] = load_16_bytes(query + min_of(r0 + g, last) * p.left_row + 32 * i);
      high[i] = load_16_bytes(query + min_of(r0 + g + 8, last) * p.left_row + 32 * i);
    }
    for (int k0 = -w; k0 < kWarpRows + w; k0 += 8) {  // 8 keys from r0 + k0 on
      const T* row = key + clamp(r0 + k0 + g, 0, last) * p.right_row;
      float scores[4] = {};
#pragma unroll
      for (int i = 0; i < kSlices; i++) {
        const uint4 k = load_16_bytes(row + 32 * i);
        mma_k16<T>(scores, low[i].x, high[i].x, low[i].y, high[i].y, k.x, k.y);
        mma_k16<T>(scores, low[i].z, high[i].z, low[i].w, high[i].w, k.z, k.w);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = g + i / 2 * 8, k = k0 + 2 * t + i % 2, column = k - r + w;
        if (column < 0 || column >= columns || r0 + r > last) continue;
        const bool real = is_inside(r0 + k, p.length);
        out[static_cast<long long>(in_block + r) * columns + column] = real ? T(scores[i]) : T(0.f);
      }
    }
  }
  if (!p.staged) return;
  __syncthreads();
  copy_out(out, band, min_of(kBlockRows, p.length - block_row) * columns, lead);
}

// The bits of the weight of row r in output row o; 0 outside the band and the sequence.
__device__ __forceinline__ unsigned weight_bits(const unsigned short* band, int o, int r, int window, int length) {
  const bool real = is_inside(r, length) && o < length && r - o <= window && o - r <= window;
  return real ? band[o * (2ll * window + 1) + (r - o + window)] : 0u;
}

template <class T, int kSlices>
__global__ void __launch_bounds__(kWarps * 32) band_pv(const BandParams p) {
  const int matrix = blockIdx.x / p.num_tiles, tile = blockIdx.x % p.num_tiles;
  const int w = p.window, last = p.length - 1;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int r0 = tile * kBlockRows + threadIdx.x / 32 * kWarpRows;
  if (r0 > last) return;
  const T* value = rows_of<T>(p.right, matrix, p.right_matrix) + 4 * g;
  const unsigned short* band =
      static_cast<const unsigned short*>(p.band) + static_cast<long long>(matrix) * p.length * (2 * w + 1);

  float sums[kSlices][4][4] = {};
  for (int k0 = -w; k0 < kWarpRows + w; k0 += 16) {  // 16 rows of V from r0 + k0 on
    unsigned weights[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int o = r0 + g + i % 2 * 8, r = r0 + k0 + 2 * t + i / 2 * 8;
      weights[i] = weight_bits(band, o, r, w, p.length) |
                   weight_bits(band, o, r + 1, w, p.length) << 16;
    }
    const T* rows[4];
#pragma unroll
    for (int i = 0; i < 4; i++) rows[i] = value + clamp(r0 + k0 + 2 * t + i % 2 + i / 2 * 8, 0, last) * p.right_row;
#pragma unroll
    for (int i = 0; i < kSlices; i++) {
      uint2 v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = *reinterpret_cast<const uint2*>(rows[j] + 32 * i);
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const unsigned halves = n % 2 ? 0x7632u : 0x5410u;  // the upper or the lower numbers of two words
        const unsigned upper = n < 2 ? __byte_perm(v[0].x, v[1].x, halves) : __byte_perm(v[0].y, v[1].y, halves);
        const unsigned lower = n < 2 ? __byte_perm(v[2].x, v[3].x, halves) : __byte_perm(v[2].y, v[3].y, halves);
        mma_k16<T>(sums[i][n], weights[0], weights[1], weights[2], weights[3], upper, lower);
      }
    }
  }
  T* out = static_cast<T*>(p.sums) + static_cast<long long>(matrix) * p.length * (32 * kSlices) + 8 * t;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = r0 + g + 8 * half;
    if (r > last) break;
#pragma unroll
    for (int i = 0; i < kSlices; i++) {
      const auto& s = sums[i];
      const int even = 2 * half, odd = even + 1;  // dims 8 t + n come from columns 2 t, dims 8 t + 4 + n from columns 2 t + 1
      *reinterpret_cast<uint4*>(out + static_cast<long long>(r) * (32 * kSlices) + 32 * i) =
          make_uint4(pack<T>(s[0][even], s[1][even]), pack<T>(s[2][even], s[3][even]), pack<T>(s[0][odd], s[1][odd]),
                     pack<T>(s[2][odd], s[3][odd]));
    }
  }
}
