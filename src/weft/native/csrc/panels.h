// Micro-kernels of linear.cpp: up to PANEL_ROWS rows of x times one or two panels of a packed
// matrix.
//
// A panel holds PANEL_WIDTH outputs in the order panel[input][output]. Quantized panels have the
// same order, with several inputs of an output in each 32-bit word (packed.py). Quantized weights
// are converted to exactly the floats of the dequantized matrix before they are multiplied.
#pragma once

#include "abi.h"
#include "simd.h"

namespace weft {

namespace {

constexpr int PANEL_VECTORS = W == 4 ? 4 : 2;              // vectors in a row of a panel
constexpr int PANEL_WIDTH = PANEL_VECTORS * W;             // outputs in a panel
constexpr int PANEL_ROWS = W == 16 ? 12 : W == 8 ? 6 : 5;  // rows whose sums fit into registers
constexpr int64_t GROUP = 32;                              // inputs that share a scale

inline const float* panel_floats(const PackedMatrix& weight, int64_t panel, int64_t input) {
  return static_cast<const float*>(weight.data) + (panel * weight.inputs + input) * PANEL_WIDTH;
}

// sums[row][vector] += x[row] * w[vector] for R rows of x and V vectors of weights.
template <int R, int V>
inline void multiply_add(Vec (&sums)[R][V], const Vec (&w)[V], const float* x, int64_t x_stride) {
  UNROLL for (int row = 0; row < R; row++) {
    const Vec factor = splat(x[row * x_stride]);
    UNROLL for (int v = 0; v < V; v++) sums[row][v] = fma(factor, w[v], sums[row][v]);
  }
}

template <int R, int V>
inline void load_sums(Vec (&sums)[R][V], const float* y, int64_t y_stride, bool is_first) {
  UNROLL for (int row = 0; row < R; row++) UNROLL for (int v = 0; v < V; v++) sums[row][v] =
      is_first ? Vec{} : load(y + row * y_stride + v * W);
}

template <int R, int V>
inline void store_sums(const Vec (&sums)[R][V], float* y, int64_t y_stride) {
  UNROLL for (int row = 0; row < R; row++) UNROLL for (int v = 0; v < V; v++)
      store(y + row * y_stride + v * W, sums[row][v]);
}

// R rows of x times PANELS float panels that are `panel_stride` apart. `is_first`: start at 0
// instead of continuing the sums in y. The bias is added last; null: none.
template <int R, int PANELS>
void multiply(const float* x, int64_t x_stride, const float* panel, int64_t panel_stride,
              int64_t inputs, float* y, int64_t y_stride, bool is_first, const float* bias) {
  constexpr int V = PANELS * PANEL_VECTORS;
  Vec sums[R][V];
  load_sums(sums, y, y_stride, is_first);
  for (int64_t i = 0; i < inputs; i++) {
    Vec w[V];
    UNROLL for (int v = 0; v < V; v++) w[v] = in_register(
        load(panel + v / PANEL_VECTORS * panel_stride + i * PANEL_WIDTH + v % PANEL_VECTORS * W));
    multiply_add(sums, w, x + i, x_stride);
  }
  if (bias != nullptr)
    UNROLL for (int row = 0; row < R; row++) UNROLL for (int v = 0; v < V; v++) sums[row][v] =
        sums[row][v] + load(bias + v * W);
  store_sums(sums, y, y_stride);
}

using Gemm = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t, bool,
                      const float*);

template <int R = 1>
Gemm gemm_kernel(int64_t rows) {
  if constexpr (R < PANEL_ROWS)
    if (rows > R) return gemm_kernel<R + 1>(rows);
  return multiply<R, 1>;
}

// Extraction of the quantized numbers from a word. The PART lowest numbers are masked in place,
// which gives q times a power of 2, and the scale is divided by that power; then the word is
// shifted by PART numbers. A scale has 11 significant bits and q at most 8, so q * scale is exact,
// and adding the minimum rounds once, as in the dequantized matrix.
template <int BITS>
struct BitFields {
  static constexpr int PER_WORD = 32 / BITS, PART = BITS == 4 ? 4 : 2;  // numbers
  static constexpr int MASK = (1 << BITS) - 1;
  static float power(int place) { return 1.0f / (1 << (BITS * place)); }
};

// Quantized panels are short, and each one is a new stream for the hardware prefetcher.
inline void prefetch(const void* place) { __builtin_prefetch(place); }

// Calls use(input, vectors) with the dequantized weights of inputs begin..end of the PANELS panels
// from `first` on.
template <int BITS, int PANELS, class Use>
inline void dequantize(const PackedMatrix& weight, int64_t first, int64_t begin, int64_t end,
                       Use use) {
  using Field = BitFields<BITS>;
  constexpr int PER_WORD = Field::PER_WORD, PART = Field::PART, V = PANELS * PANEL_VECTORS;
  const int64_t words_stride = weight.inputs / PER_WORD * PANEL_WIDTH;
  const int64_t scales_stride = weight.inputs / GROUP * PANEL_WIDTH;
  const int32_t* words = static_cast<const int32_t*>(weight.data) + first * words_stride;
  for (int64_t group = begin / GROUP; group < end / GROUP; group++) {
    Vec scale[PART][V], minimum[V];
    UNROLL for (int v = 0; v < V; v++) {
      const int64_t panel = first + v / PANEL_VECTORS;
      const int64_t at = panel * scales_stride + group * PANEL_WIDTH + v % PANEL_VECTORS * W;
      const Vec one = load_half(weight.scales + at);
      UNROLL for (int place = 0; place < PART; place++) scale[place][v] =
          one * splat(Field::power(place));
      minimum[v] = BITS == 4 ? load_half(weight.minima + at) : one * splat(-128.0f);
      prefetch(weight.scales + at + PANELS * scales_stride);
      if (BITS == 4) prefetch(weight.minima + at + PANELS * scales_stride);
    }
    for (int64_t i = group * GROUP; i < (group + 1) * GROUP; i += PER_WORD) {
      Ints packed[V];
      UNROLL for (int v = 0; v < V; v++) {
        const int32_t* at = words + v / PANEL_VECTORS * words_stride + i / PER_WORD * PANEL_WIDTH;
        packed[v] = load_ints(at + v % PANEL_VECTORS * W);
        if (v % PANEL_VECTORS == 0) prefetch(at + PANELS * words_stride);
      }
      UNROLL for (int place = 0; place < PER_WORD; place++) {
        const int low = place % PART;
        Vec w[V];
        UNROLL for (int v = 0; v < V; v++) {
          if (place > 0 && low == 0) packed[v] >>= BITS * PART;
          const Vec q = to_float(packed[v] & (Field::MASK << (BITS * low)));
          w[v] = fma(q, scale[low][v], minimum[v]);
        }
        use(i + place, w);
      }
    }
  }
}

// One row of x times PANELS quantized panels.
template <int BITS, int PANELS>
void quantized_gemv(const float* x, const PackedMatrix& weight, int64_t first, float* y) {
  constexpr int V = PANELS * PANEL_VECTORS;
  Vec sums[1][V] = {};
  dequantize<BITS, PANELS>(weight, first, 0, weight.inputs,
                           [&](int64_t i, const Vec(&w)[V]) { multiply_add(sums, w, x + i, 0); });
  store_sums(sums, y, 0);
}

template <int BITS>
void dequantize_panel(const PackedMatrix& weight, int64_t panel, int64_t begin, int64_t end,
                      float* to) {
  dequantize<BITS, 1>(weight, panel, begin, end, [&](int64_t i, const Vec(&w)[PANEL_VECTORS]) {
    for (int v = 0; v < PANEL_VECTORS; v++) store(to + (i - begin) * PANEL_WIDTH + v * W, w[v]);
  });
}

}  // namespace
}  // namespace weft
