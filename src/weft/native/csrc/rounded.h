// Products of few-bit weights with inputs that are rounded to 8 bits: whole numbers are multiplied,
// and floats only once in GROUP inputs.
//
//   x[i] ~ step * q[i]     q in -127..127, step = largest |x| of the group / 127
//   y[o] = sum over groups of  scale[o] * step * (w[o] . q) + minimum[o] * step * (sum of q)
//
// This is how llama.cpp multiplies (its Q8_1). A row's steps are its own and its groups are summed
// from left to right, so that it has the same bits in any company, as in linear.cpp. w . q is exact,
// whatever instructions the processor has for it.
#pragma once

#include <vector>

#include "panels.h"
#include "rows.h"

namespace weft {

// sums[lane] += the four unsigned bytes of `weights` times the four signed ones of `inputs`.
inline Ints dot4(Ints sums, Ints weights, int32_t inputs) {
#if defined(__AVX512VNNI__)
  return Ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(weights), _mm512_set1_epi32(inputs)));
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
  // pairs are added in 16 bits, where 255 * 127 * 2 has no room: the highest bits go by themselves
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

// Some rows of x, rounded. Groups of 4-bit weights have their inputs in the order of the bytes that
// a word becomes when its lower and its upper halves are masked: 0 2 4 6, then 1 3 5 7.
class RoundedRows {
 public:
  // To be called before another product's rows are covered.
  void forget() { first = -1; }
  // Rounds rows row..row + rows of the call, unless those were the last ones.
  void cover(const LinearCall& call, int64_t row, int64_t rows) {
    if (row == first && rows == count) return;
    first = row, count = rows, inputs = call.weight->inputs;
    numbers.resize(rows * inputs), steps.resize(rows * inputs / GROUP * 2);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < inputs; i += GROUP)
        round_group(call.x + (row + r) * call.x_stride + i, call.weight->bits == 4,
                    numbers.data() + r * inputs + i, steps.data() + (r * inputs + i) / GROUP * 2);
  }
  const int8_t* numbers_of(int64_t row) const { return numbers.data() + (row - first) * inputs; }
  // For each group its step, and the step times the sum of its numbers.
  const float* steps_of(int64_t row) const {
    return steps.data() + (row - first) * inputs / GROUP * 2;
  }

 private:
  static void round_group(const float* x, bool is_split, int8_t* numbers, float* steps) {
    typedef int8_t Bytes __attribute__((vector_size(W)));
    typedef int8_t All __attribute__((vector_size(GROUP)));
    Ints best = {};  // sizes as whole numbers have the order of floats, with inf and NaN on top
    UNROLL for (int64_t i = 0; i < GROUP; i += W) {
      const Ints size = reinterpret_cast<Ints>(load(x + i)) & 0x7FFFFFFF;
      best = size > best ? size : best;
    }
    const float largest = of_bits(over_lanes(best, [](int a, int b) { return a > b ? a : b; }));
    const float many = largest > 1e-30f ? 127 / largest : 0.0f;
    const Vec magic = splat(12582912.0f);  // rounds to a whole number, as in exp_of
    Bits sums = {};
    All all;
    UNROLL for (int64_t i = 0; i < GROUP; i += W) {
      const Bits shifted = reinterpret_cast<Bits>(load(x + i) * many + magic);
      const Bits whole = shifted - 0x4B400000u;  // inf and NaN: any number
      const Bytes bytes = __builtin_convertvector(reinterpret_cast<Ints>(whole), Bytes);
      std::memcpy(reinterpret_cast<int8_t*>(&all) + i, &bytes, sizeof bytes);
      sums += whole;
    }
    if (is_split)
      all = __builtin_shufflevector(all, all, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
                                    16, 18, 20, 22, 17, 19, 21, 23, 24, 26, 28, 30, 25, 27, 29, 31);
    std::memcpy(numbers, &all, sizeof all);
    const auto add = [](int a, int b) { return static_cast<int>(uint32_t(a) + uint32_t(b)); };
    const int sum = over_lanes(reinterpret_cast<Ints>(sums), add);
    steps[0] = largest / 127, steps[1] = steps[0] * static_cast<float>(sum);
  }

  template <class Join>
  static int over_lanes(Ints value, Join join) {
    int lanes[W];
    std::memcpy(lanes, &value, sizeof lanes);
    int joined = lanes[0];
    for (int lane = 1; lane < W; lane++) joined = join(joined, lanes[lane]);
    return joined;
  }

  static float of_bits(int bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
  }

  int64_t first = -1, count = 0, inputs = 0;
  std::vector<int8_t> numbers;
  std::vector<float> steps;
};

namespace {

inline int32_t four(const int8_t* numbers) {
  int32_t word;
  std::memcpy(&word, numbers, sizeof word);
  return word;
}

// R rounded rows times V vectors of outputs, from vector `first` (of all panels) on.
template <int BITS, int R, int V>
void multiply_rounded(const Packed& weight, int64_t first, const RoundedRows& rows, int64_t row,
                      float* y, int64_t y_stride) {
  constexpr int PER_WORD = 32 / BITS;
  constexpr int32_t NIBBLES = 0x0F0F0F0F;
  const int64_t groups = weight.inputs / GROUP, words = weight.inputs / PER_WORD;
  const int8_t* q = rows.numbers_of(row);
  const float* steps = rows.steps_of(row);
  const int32_t* data[V];
  int64_t scales[V];
  UNROLL for (int v = 0; v < V; v++) {
    const int64_t panel = (first + v) / PANEL_VECTORS, lane = (first + v) % PANEL_VECTORS * W;
    data[v] = static_cast<const int32_t*>(weight.data) + panel * words * WIDTH + lane;
    scales[v] = panel * groups * WIDTH + lane;
  }
  Vec sums[R][V] = {};
  for (int64_t group = 0; group < groups; group++) {
    Ints dots[R][V] = {};
    const int8_t* at = q + group * GROUP;
    for (int64_t word = 0; word < GROUP / PER_WORD; word++) {
      UNROLL for (int v = 0; v < V; v++) {
        const Ints w = load_ints(data[v] + (group * GROUP / PER_WORD + word) * WIDTH);
        UNROLL for (int r = 0; r < R; r++) {
          const int8_t* four_of = at + r * weight.inputs + word * PER_WORD;
          if (BITS == 8) dots[r][v] = dot4(dots[r][v], w, four(four_of));
          if (BITS == 4) {
            dots[r][v] = dot4(dots[r][v], w & NIBBLES, four(four_of));
            dots[r][v] = dot4(dots[r][v], (w >> 4) & NIBBLES, four(four_of + 4));
          }
        }
      }
    }
    UNROLL for (int v = 0; v < V; v++) {
      const int64_t place = scales[v] + group * WIDTH;
      const Vec scale = load_half(weight.scales + place);
      const Vec minimum =
          BITS == 4 ? load_half(weight.minima + place) : scale * splat(-128.0f);
      UNROLL for (int r = 0; r < R; r++) {
        const float* step = steps + (r * groups + group) * 2;
        sums[r][v] = fma(to_float(dots[r][v]), scale * step[0], sums[r][v]);
        sums[r][v] = fma(minimum, splat(step[1]), sums[r][v]);
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < V; v++) store(y + r * y_stride + v * W, sums[r][v]);
}

using MultiplyRounded = void (*)(const Packed&, int64_t, const RoundedRows&, int64_t, float*,
                                 int64_t);

template <int BITS, int R = 1>
MultiplyRounded rounded_rows(int64_t rows) {
  if constexpr (R < PANEL_ROWS)
    if (rows > R) return rounded_rows<BITS, R + 1>(rows);
  return multiply_rounded<BITS, R, 1>;
}

// Up to PANEL_ROWS rows times one panel.
inline void multiply_rounded_panel(const Packed& weight, int64_t panel, const RoundedRows& rows,
                                   int64_t row, int64_t num, float* y, int64_t y_stride) {
  const auto multiply = weight.bits == 4 ? rounded_rows<4>(num) : rounded_rows<8>(num);
  for (int v = 0; v < PANEL_VECTORS; v++)
    multiply(weight, panel * PANEL_VECTORS + v, rows, row, y + v * W, y_stride);
}

}  // namespace
}  // namespace weft
