// Products of quantized weights with inputs that are dynamically quantized to int8: integer dot
// products, and one float multiply-add per group of GROUP inputs.
//
//   x[i] ~ step * q[i]     q in -127..127, step = max |x| of the group / 127
//   y[o] = sum over groups of  scale[o] * step * (w[o] . q) + minimum[o] * step * (sum of q)
//
// llama.cpp multiplies in the same way (its Q8_1). The steps of a row depend on that row alone and
// its groups are added from left to right: the result is batch-invariant, as in linear.cpp. w . q
// is exact with any instruction set.
#pragma once

#include <vector>

#include "layer_ops.h"
#include "panels.h"

namespace weft {

// sums[lane] += dot product of four unsigned bytes of `weights` and four signed bytes of `inputs`.
inline Ints dot4(Ints sums, Ints weights, int32_t inputs) {
#if defined(__AVX512VNNI__)
  return Ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(weights), _mm512_set1_epi32(inputs)));
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
  // maddubs adds pairs in 16 bits, which 2 * 255 * 127 overflows: the highest bits are separate
  const __m256i q = _mm256_set1_epi32(inputs), w = __m256i(weights), ones = _mm256_set1_epi16(1);
  const __m256i low = _mm256_and_si256(w, _mm256_set1_epi8(127));
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 7), _mm256_set1_epi8(1));
  const __m256i small = _mm256_madd_epi16(_mm256_maddubs_epi16(low, q), ones);
  const __m256i large = _mm256_madd_epi16(_mm256_maddubs_epi16(high, q), ones);
  return sums + Ints(small) + Ints(large) * 128;
#else
  for (int place = 0; place < 4; place++)
    sums += ((weights >> (8 * place)) & 255) * static_cast<int8_t>(inputs >> (8 * place));
  return sums;
#endif
}

// Rows of x, quantized. For 4-bit weights each 8 inputs are permuted to 0 2 4 6 1 3 5 7, the order
// in which masking the low and then the high nibbles of a word yields the weights.
class Int8Rows {
 public:
  // Call before quantizing the input of another product.
  void invalidate() { first = -1; }
  // Quantizes `rows` rows from `row` on, unless the last call did exactly that.
  void quantize(const LinearCall& call, int64_t row, int64_t rows) {
    if (row == first && rows == count) return;
    invalidate();  // until all is done: without memory, the next task must not use what is there
    count = rows, inputs = call.weight->inputs;
    values.resize(rows * inputs), steps.resize(rows * inputs / GROUP * 2);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < inputs; i += GROUP)
        quantize_group(call.x + (row + r) * call.x_stride + i, call.weight->bits == 4,
                       values.data() + r * inputs + i, steps.data() + (r * inputs + i) / GROUP * 2);
    first = row;
  }
  const int8_t* values_of(int64_t row) const { return values.data() + (row - first) * inputs; }
  // For each group: its step, and its step times the sum of its values.
  const float* steps_of(int64_t row) const {
    return steps.data() + (row - first) * inputs / GROUP * 2;
  }

 private:
  static void quantize_group(const float* x, bool is_split, int8_t* values, float* steps) {
    typedef int8_t Bytes __attribute__((vector_size(W)));
    typedef int8_t All __attribute__((vector_size(GROUP)));
    Ints best = {};  // bits of |x| compare like floats, with inf and NaN on top
    UNROLL for (int64_t i = 0; i < GROUP; i += W) {
      const Ints size = reinterpret_cast<Ints>(load(x + i)) & 0x7FFFFFFF;
      best = size > best ? size : best;
    }
    const float max_abs = float_from_bits(reduce(best, [](int a, int b) { return a > b ? a : b; }));
    const float inverse_step = max_abs > 1e-30f ? 127 / max_abs : 0.0f;
    const Vec magic = splat(12582912.0f);  // rounds to an integer, as in vexp
    Bits sums = {};
    All all;
    UNROLL for (int64_t i = 0; i < GROUP; i += W) {
      const Bits shifted = reinterpret_cast<Bits>(load(x + i) * inverse_step + magic);
      const Bits q = shifted - 0x4B400000u;  // inf and NaN: any number
      const Bytes bytes = __builtin_convertvector(reinterpret_cast<Ints>(q), Bytes);
      std::memcpy(reinterpret_cast<int8_t*>(&all) + i, &bytes, sizeof bytes);
      sums += q;
    }
    if (is_split)
      all = __builtin_shufflevector(all, all, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
                                    16, 18, 20, 22, 17, 19, 21, 23, 24, 26, 28, 30, 25, 27, 29, 31);
    std::memcpy(values, &all, sizeof all);
    const auto add = [](int a, int b) { return static_cast<int>(uint32_t(a) + uint32_t(b)); };
    const int sum = reduce(reinterpret_cast<Ints>(sums), add);
    steps[0] = max_abs / 127, steps[1] = steps[0] * static_cast<float>(sum);
  }

  template <class Join>
  static int reduce(Ints value, Join join) {
    int lanes[W];
    std::memcpy(lanes, &value, sizeof lanes);
    int joined = lanes[0];
    for (int lane = 1; lane < W; lane++) joined = join(joined, lanes[lane]);
    return joined;
  }

  static float float_from_bits(int bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
  }

  int64_t first = -1, count = 0, inputs = 0;
  std::vector<int8_t> values;
  std::vector<float> steps;
};

namespace {

inline int32_t load4(const int8_t* values) {
  int32_t word;
  std::memcpy(&word, values, sizeof word);
  return word;
}

// R quantized rows times V vectors of outputs, from vector `first` (counted over all panels) on.
template <int BITS, int R, int V>
void int8_gemm(const PackedMatrix& weight, int64_t first, const Int8Rows& rows, int64_t row,
               float* y, int64_t y_stride) {
  constexpr int PER_WORD = 32 / BITS;
  constexpr int32_t NIBBLES = 0x0F0F0F0F;
  const int64_t groups = weight.inputs / GROUP, words = weight.inputs / PER_WORD;
  const int8_t* q = rows.values_of(row);
  const float* steps = rows.steps_of(row);
  const int32_t* data[V];
  int64_t scales[V];
  UNROLL for (int v = 0; v < V; v++) {
    const int64_t panel = (first + v) / PANEL_VECTORS, lane = (first + v) % PANEL_VECTORS * W;
    data[v] = static_cast<const int32_t*>(weight.data) + panel * words * PANEL_WIDTH + lane;
    scales[v] = panel * groups * PANEL_WIDTH + lane;
  }
  Vec sums[R][V] = {};
  for (int64_t group = 0; group < groups; group++) {
    Ints dots[R][V] = {};
    const int8_t* at = q + group * GROUP;
    for (int64_t word = 0; word < GROUP / PER_WORD; word++) {
      UNROLL for (int v = 0; v < V; v++) {
        const Ints w = load_ints(data[v] + (group * GROUP / PER_WORD + word) * PANEL_WIDTH);
        UNROLL for (int r = 0; r < R; r++) {
          const int8_t* q4 = at + r * weight.inputs + word * PER_WORD;
          if (BITS == 8) dots[r][v] = dot4(dots[r][v], w, load4(q4));
          if (BITS == 4) {
            dots[r][v] = dot4(dots[r][v], w & NIBBLES, load4(q4));
            dots[r][v] = dot4(dots[r][v], (w >> 4) & NIBBLES, load4(q4 + 4));
          }
        }
      }
    }
    UNROLL for (int v = 0; v < V; v++) {
      const int64_t place = scales[v] + group * PANEL_WIDTH;
      const Vec scale = load_half(weight.scales + place);
      const Vec minimum = BITS == 4 ? load_half(weight.minima + place) : scale * splat(-128.0f);
      UNROLL for (int r = 0; r < R; r++) {
        const float* step = steps + (r * groups + group) * 2;
        sums[r][v] = fma(to_float(dots[r][v]), scale * step[0], sums[r][v]);
        sums[r][v] = fma(minimum, splat(step[1]), sums[r][v]);
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
      store(y + r * y_stride + v * W, sums[r][v]);
}

using Int8Gemm = void (*)(const PackedMatrix&, int64_t, const Int8Rows&, int64_t, float*, int64_t);

template <int BITS, int R = 1>
Int8Gemm int8_kernel(int64_t rows) {
  if constexpr (R < PANEL_ROWS)
    if (rows > R) return int8_kernel<BITS, R + 1>(rows);
  return int8_gemm<BITS, R, 1>;
}

// Up to PANEL_ROWS quantized rows times one panel.
inline void int8_gemm_panel(const PackedMatrix& weight, int64_t panel, const Int8Rows& rows,
                            int64_t row, int64_t num, float* y, int64_t y_stride) {
  const auto multiply = weight.bits == 4 ? int8_kernel<4>(num) : int8_kernel<8>(num);
  for (int v = 0; v < PANEL_VECTORS; v++)
    multiply(weight, panel * PANEL_VECTORS + v, rows, row, y + v * W, y_stride);
}

}  // namespace
}  // namespace weft
