// Fragments of m16n8k16 straight from rows in memory: no shuffles, no ldmatrix, 16-byte reads (8 for V at D = 32).
//
// A dot product does not care about the order of its terms, and the columns of P V may be numbered in any order. With
// lane = 4 g + t:
//
//   Q, K  lane t holds numbers 8t .. 8t+7 of each slice of 32, one 16-byte read. Its words 0, 1 are the fragment of one
//         mma, words 2, 3 of the next. The two factors are permuted alike.
//   V     lane g holds the D/8 numbers from g D/8 of rows 2t, 2t+1, 2t+8, 2t+9. Column g of product j is number g D/8 + j.
//   out   so lane (g, t) ends with the D/4 consecutive numbers from t D/4 of rows g and g + 8.

// The part of a row of Q or K that lane t holds.
template <int D>
struct Slices {
  uint4 slice[D / 32];
};

// The part of a row of V that lane g holds.
template <int D>
struct Segment {
  unsigned pair[D / 16];
};

// The part of 16 rows of the output that lane (g, t) holds. Elements 0, 1 belong to row g, elements 2, 3 to row g + 8.
template <int D>
struct Output {
  float column[D / 8][4];
};

// row: a row of Q or K, advanced by 8 t numbers.
template <class T, int D>
__device__ __forceinline__ Slices<D> load_slices(const T* row) {
  Slices<D> loaded;
#pragma unroll
  for (int i = 0; i < D / 32; i++) loaded.slice[i] = *reinterpret_cast<const uint4*>(row + 32 * i);
  return loaded;
}

// Scores of 16 rows (g from `top`, g + 8 from `bottom`) with 8 keys: lane (g, t) gets those with keys 2t and 2t + 1.
template <class T, int D>
__device__ __forceinline__ void score(float (&scores)[4], const Slices<D>& top, const Slices<D>& bottom,
                                      const Slices<D>& key) {
  scores[0] = scores[1] = scores[2] = scores[3] = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    const uint4 a = top.slice[i], b = bottom.slice[i], k = key.slice[i];
    mma_k16<T>(scores, a.x, b.x, a.y, b.y, k.x, k.y);
    mma_k16<T>(scores, a.z, b.z, a.w, b.w, k.z, k.w);
  }
}

// Number j of two V rows in one register.
template <int D>
__device__ __forceinline__ unsigned interleave(const Segment<D>& even, const Segment<D>& odd, int j) {
  return __byte_perm(even.pair[j / 2], odd.pair[j / 2], j % 2 ? 0x7632u : 0x5410u);  // @interleave
}

// out += P V over 16 keys. left, right: probabilities laid out as `score` leaves scores, of keys 0-7 and 8-15.
// values: rows 2t, 2t + 1, 2t + 8, 2t + 9.
template <class T, int D>
__device__ __forceinline__ void add_values(Output<D>& out, const float (&left)[4], const float (&right)[4],
                                           const Segment<D> (&values)[4]) {
  const unsigned a0 = pack<T>(left[0], left[1]), a1 = pack<T>(left[2], left[3]);
  const unsigned a2 = pack<T>(right[0], right[1]), a3 = pack<T>(right[2], right[3]);
#pragma unroll
  for (int j = 0; j < D / 8; j++)
    mma_k16<T>(out.column[j], a0, a1, a2, a3, interleave(values[0], values[1], j), interleave(values[2], values[3], j));
}

// The same over 8 keys. even, odd: V rows 2t and 2t + 1.
template <class T, int D>
__device__ __forceinline__ void add_values(Output<D>& out, const float (&weights)[4], const Segment<D>& even,
                                           const Segment<D>& odd) {
  const unsigned a0 = pack<T>(weights[0], weights[1]), a1 = pack<T>(weights[2], weights[3]);
#pragma unroll
  for (int j = 0; j < D / 8; j++) mma_k8<T>(out.column[j], a0, a1, interleave(even, odd, j));
}

// Sets row g (half 0) or g + 8 (half 1) to zero.
template <int D>
__device__ __forceinline__ void clear_row(Output<D>& out, int half) {
#pragma unroll
  for (int j = 0; j < D / 8; j++) out.column[j][2 * half] = out.column[j][2 * half + 1] = 0.f;
}

// Multiplies row g (half 0) or g + 8 (half 1).
template <int D>
__device__ __forceinline__ void scale_row(Output<D>& out, int half, float factor) {
#pragma unroll
  for (int j = 0; j < D / 8; j++) {
    out.column[j][2 * half] *= factor;
    out.column[j][2 * half + 1] *= factor;
  }
}

// Writes this lane's part of row g or g + 8, times `factor`. row: of this head, advanced by t D/4 numbers.
template <class T, int D>
__device__ __forceinline__ void store_row(T* row, const Output<D>& out, int half, float factor) {
  unsigned word[D / 8];
#pragma unroll
  for (int j = 0; j < D / 16; j++) {
    const float(&a)[4] = out.column[2 * j], (&b)[4] = out.column[2 * j + 1];
    word[j] = pack<T>(a[2 * half] * factor, b[2 * half] * factor);
    word[D / 16 + j] = pack<T>(a[2 * half + 1] * factor, b[2 * half + 1] * factor);
  }
#pragma unroll
  for (int j = 0; j < D / 32; j++)
    reinterpret_cast<uint4*>(row)[j] = make_uint4(word[4 * j], word[4 * j + 1], word[4 * j + 2], word[4 * j + 3]);
}
