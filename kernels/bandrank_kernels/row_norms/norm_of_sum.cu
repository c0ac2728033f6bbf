// LayerNorm of a sum of rows, one row to a warp:
//
//   out[r] = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias,   s = sum over addends a of rows_a[n_a(r)]
//
// with n_a(r) = numbers_a[r], or r where there are no numbers. A lane has kColumns columns of each part, here 8 of 256:
//
//              lane 0    lane 1            lane 31
//   part 0     0 ..  7   8 ..  15   ...   248 .. 255
//   part 1   256 .. 263  264 .. 271 ...   504 .. 511     columns from hidden_size on belong to no lane
//
// With 4 of 128, 384 columns leave no lane idle, and more warps have room for their registers.
// They stay in registers as floats between the one read of the rows and the one write. The order of the sums depends on
// hidden_size alone. A kernel cannot raise: a number outside its table makes the row NaN, and reads nothing.

constexpr int kRowsPerBlock = 4;
constexpr int kMostAddends = 3;

// Leaves 32 registers for 4 columns of 16 bits, else 64, 96 for float: with nothing said, ptxas saves registers by spilling.
template <class T, int kColumns> constexpr int kBlocksPerSm = sizeof(T) == 4 ? 5 : kColumns == 4 ? 16 : 8;

struct Addend {
  const void* rows;          // num_rows rows, row_stride numbers apart, each at a 16-byte address
  const long long* numbers;  // of the row that each row of the sum takes; null: the same number
  long long num_rows;
  long long row_stride;
};

struct NormParams {
  Addend addends[kMostAddends];
  const void* weight;  // weight, bias and out are contiguous and start at a 16-byte address
  const void* bias;
  void* out;
  long long num_rows;
  int hidden_size;  // a multiple of 8
  float eps;
};

// Consecutive numbers in memory, and a piece of them that one load or store moves.
template <class T, int kColumns>
struct alignas(kColumns * sizeof(T) >= 16 ? 16 : 8) Columns {
  T numbers[kColumns];
};
template <int kBytes> struct PieceOf { using Type = uint4; };
template <> struct PieceOf<8> { using Type = uint2; };

// Loads columns, or zeros if they are not real. rows: they are read once, and a launch before this one may have written
// them; else they are weights, which many warps read.
template <class T, int kColumns>
__device__ __forceinline__ Columns<T, kColumns> load_columns(const T* from, bool rows, bool real = true) {
  using Piece = typename PieceOf<kColumns * sizeof(T)>::Type;
  Columns<T, kColumns> columns;
#pragma unroll
  for (int i = 0; i < sizeof columns / sizeof(Piece); i++) {
    const Piece* const piece = reinterpret_cast<const Piece*>(from) + i;
    reinterpret_cast<Piece*>(&columns)[i] = real ? rows ? __ldcg(piece) : __ldg(piece) : Piece{};
  }
  return columns;
}

template <class T, int kColumns>
__device__ __forceinline__ void store_columns(T* to, const Columns<T, kColumns>& columns) {
  using Piece = typename PieceOf<kColumns * sizeof(T)>::Type;
#pragma unroll
  for (int i = 0; i < sizeof columns / sizeof(Piece); i++)
    reinterpret_cast<Piece*>(to)[i] = reinterpret_cast<const Piece*>(&columns)[i];
}

template <class T, int kColumns, int kParts, int kAddends>
__global__ void __launch_bounds__(32 * kRowsPerBlock, kBlocksPerSm<T, kColumns>)
    norm_of_sum(const __grid_constant__ NormParams p) {
  constexpr int kPartColumns = 32 * kColumns;
  const long long row = static_cast<long long>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  wait_for_earlier_launches();
  if (row >= p.num_rows) return;  // @rows
  const int first = threadIdx.x % 32 * kColumns;
  auto exists = [&](int part) { return first + part * kPartColumns < p.hidden_size; };  // @columns

  Columns<T, kColumns> read[kAddends][kParts];  // all loads are under way before the first sum
  bool known = true;
#pragma unroll
  for (int a = 0; a < kAddends; a++) {
    const Addend& addend = p.addends[a];
    const long long number = addend.numbers ? addend.numbers[row] : row;  // @number
    known &= 0 <= number && number < addend.num_rows;  // @known
    const T* from = static_cast<const T*>(addend.rows) + number * addend.row_stride + first;  // @stride
#pragma unroll
    for (int part = 0; part < kParts; part++)
      read[a][part] = load_columns<T, kColumns>(from + part * kPartColumns, /*rows=*/true, known && exists(part));
  }

  float s[kParts][kColumns] = {}, sum = 0.f, squares = 0.f;
#pragma unroll
  for (int part = 0; part < kParts; part++)
#pragma unroll
    for (int i = 0; i < kColumns; i++)
#pragma unroll
      for (int a = 0; a < kAddends; a++) s[part][i] += float(read[a][part].numbers[i]);  // @addends
  // Numbers less the first of the row: of nearly equal numbers, the mean would otherwise be off by more than they differ.
  const float first_number = __shfl_sync(kAllLanes, s[0][0], 0);
#pragma unroll
  for (int part = 0; part < kParts; part++)
#pragma unroll
    for (int i = 0; i < kColumns; i++) sum = exists(part) ? sum + (s[part][i] - first_number) : sum;
  sum = warp_sum(sum);
  const float mean = known ? sum / p.hidden_size : nanf("");  // @mean
#pragma unroll
  for (int part = 0; part < kParts; part++)
#pragma unroll
    for (int i = 0; i < kColumns; i++) {
      s[part][i] = s[part][i] - first_number - mean;
      squares = exists(part) ? fmaf(s[part][i], s[part][i], squares) : squares;  // @squares
    }
  const float scale = 1.f / sqrtf(warp_sum(squares) / p.hidden_size + p.eps);  // @scale

  T* const out = static_cast<T*>(p.out) + row * p.hidden_size + first;
#pragma unroll
  for (int part = 0; part < kParts; part++) {
    if (!exists(part)) continue;
    const int offset = part * kPartColumns;
    const Columns<T, kColumns> weight = load_columns<T, kColumns>(static_cast<const T*>(p.weight) + first + offset, /*rows=*/false);
    Columns<T, kColumns> result = load_columns<T, kColumns>(static_cast<const T*>(p.bias) + first + offset, /*rows=*/false);
#pragma unroll
    for (int i = 0; i < kColumns; i++)
      result.numbers[i] = T(fmaf(s[part][i] * scale, float(weight.numbers[i]), float(result.numbers[i])));  // @affine
    store_columns(out + offset, result);
  }
}
