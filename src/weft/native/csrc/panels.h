// Some rows of x times one or two panels of a weight: what linear.cpp is made of.
//
// A panel holds WIDTH outputs, inputs first: panel[i][output]. Weights of few bits lie likewise,
// several inputs of one output in each 32-bit word (packed.py), and become the very float that the
// dequantised weight has before they are multiplied.
#pragma once

#include "simd.h"

namespace weft {

// Mirrors PackedStruct of structs.py.
struct Packed {
  int64_t bits;  // 32: float; 8: scale * (q - 128); 4: scale * q + minimum; q from 0 on
  int64_t inputs, outputs;
  const void* data;
  const uint16_t* scales;  // half floats [panel][group][WIDTH]
  const uint16_t* minima;
  int64_t is_rounded;  // of few bits: inputs are rounded to 8 bits before they are multiplied
};

namespace {

constexpr int PANEL_VECTORS = W == 4 ? 4 : 2;              // of a panel
constexpr int WIDTH = PANEL_VECTORS * W;                   // outputs of a panel
constexpr int PANEL_ROWS = W == 16 ? 12 : W == 8 ? 6 : 5;  // rows whose sums fit into the registers
constexpr int64_t GROUP = 32;                        // inputs that share a scale

inline const float* floats(const Packed& weight, int64_t panel, int64_t input) {
  return static_cast<const float*>(weight.data) + (panel * weight.inputs + input) * WIDTH;
}

// One step of `PANELS` neighbouring panels for `R` rows: sums[row][vector] += x[row] * w[vector].
template <int R, int V>
inline void step(Vec (&sums)[R][V], const Vec (&w)[V], const float* x, int64_t x_stride) {
  UNROLL for (int row = 0; row < R; row++) {
    const Vec factor = splat(x[row * x_stride]);
    UNROLL for (int v = 0; v < V; v++) sums[row][v] = fma(factor, w[v], sums[row][v]);
  }
}

template <int R, int V>
inline void begin_sums(Vec (&sums)[R][V], const float* y, int64_t y_stride, bool is_first) {
  UNROLL for (int row = 0; row < R; row++)
    UNROLL for (int v = 0; v < V; v++)
      sums[row][v] = is_first ? Vec{} : load(y + row * y_stride + v * W);
}

template <int R, int V>
inline void end_sums(const Vec (&sums)[R][V], float* y, int64_t y_stride) {
  UNROLL for (int row = 0; row < R; row++)
    UNROLL for (int v = 0; v < V; v++) store(y + row * y_stride + v * W, sums[row][v]);
}

// R rows times `PANELS` float panels that lie `panel_stride` apart; the bias, where there is one,
// comes last.
template <int R, int PANELS>
void multiply(const float* x, int64_t x_stride, const float* panel, int64_t panel_stride,
              int64_t inputs, float* y, int64_t y_stride, bool is_first, const float* bias) {
  constexpr int V = PANELS * PANEL_VECTORS;
  Vec sums[R][V];
  begin_sums(sums, y, y_stride, is_first);
  for (int64_t i = 0; i < inputs; i++) {
    Vec w[V];
    UNROLL for (int v = 0; v < V; v++)
      w[v] = held(load(panel + v / PANEL_VECTORS * panel_stride + i * WIDTH +
                       v % PANEL_VECTORS * W));
    step(sums, w, x + i, x_stride);
  }
  if (bias != nullptr)
    UNROLL for (int row = 0; row < R; row++)
      UNROLL for (int v = 0; v < V; v++) sums[row][v] = sums[row][v] + load(bias + v * W);
  end_sums(sums, y, y_stride);
}

using Multiply = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t,
                          bool, const float*);

template <int R = 1>
Multiply multiply_rows(int64_t rows) {
  if constexpr (R < PANEL_ROWS)
    if (rows > R) return multiply_rows<R + 1>(rows);
  return multiply<R, 1>;
}

// How the numbers of a word become floats: those of its lower part are masked where they stand, so
// that each is q times a power of 2, and the scale is divided by that power; then the word is
// shifted to the next part. scale has 11 bits, q has at most 8: q * scale is exact, and with the
// minimum added it is rounded once, as the dequantised weight is.
template <int BITS>
struct Fields {
  static constexpr int PER_WORD = 32 / BITS, PART = BITS == 4 ? 4 : 2;  // numbers
  static constexpr int MASK = (1 << BITS) - 1;
  static float power(int place) { return 1.0f / (1 << (BITS * place)); }
};

// Asks for memory that is read next: panels of few bits are short, and each begins a new stream.
inline void expect(const void* place) { __builtin_prefetch(place); }

// Calls use(input, vectors) for inputs begin..end of the panels first..first + PANELS.
template <int BITS, int PANELS, class Use>
inline void unpack(const Packed& weight, int64_t first, int64_t begin, int64_t end, Use use) {
  using Field = Fields<BITS>;
  constexpr int PER_WORD = Field::PER_WORD, PART = Field::PART, V = PANELS * PANEL_VECTORS;
  const int64_t words_stride = weight.inputs / PER_WORD * WIDTH;
  const int64_t scales_stride = weight.inputs / GROUP * WIDTH;
  const int32_t* words = static_cast<const int32_t*>(weight.data) + first * words_stride;
  for (int64_t group = begin / GROUP; group < end / GROUP; group++) {
    Vec scale[PART][V], minimum[V];
    UNROLL for (int v = 0; v < V; v++) {
      const int64_t panel = first + v / PANEL_VECTORS;
      const int64_t at = panel * scales_stride + group * WIDTH + v % PANEL_VECTORS * W;
      const Vec one = load_half(weight.scales + at);
      UNROLL for (int place = 0; place < PART; place++)
        scale[place][v] = one * splat(Field::power(place));
      minimum[v] = BITS == 4 ? load_half(weight.minima + at) : one * splat(-128.0f);
      expect(weight.scales + at + PANELS * scales_stride);
      if (BITS == 4) expect(weight.minima + at + PANELS * scales_stride);
    }
    for (int64_t i = group * GROUP; i < (group + 1) * GROUP; i += PER_WORD) {
      Ints packed[V];
      UNROLL for (int v = 0; v < V; v++) {
        const int32_t* at = words + v / PANEL_VECTORS * words_stride + i / PER_WORD * WIDTH;
        packed[v] = load_ints(at + v % PANEL_VECTORS * W);
        if (v % PANEL_VECTORS == 0) expect(at + PANELS * words_stride);
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

// One row straight from weights of few bits.
template <int BITS, int PANELS>
void multiply_packed(const float* x, const Packed& weight, int64_t first, float* y) {
  constexpr int V = PANELS * PANEL_VECTORS;
  Vec sums[1][V] = {};
  unpack<BITS, PANELS>(weight, first, 0, weight.inputs,
                       [&](int64_t i, const Vec(&w)[V]) { step(sums, w, x + i, 0); });
  end_sums(sums, y, 0);
}

template <int BITS>
void unpack_panel(const Packed& weight, int64_t panel, int64_t begin, int64_t end, float* to) {
  unpack<BITS, 1>(weight, panel, begin, end, [&](int64_t i, const Vec(&w)[PANEL_VECTORS]) {
    for (int v = 0; v < PANEL_VECTORS; v++) store(to + (i - begin) * WIDTH + v * W, w[v]);
  });
}

}  // namespace
}  // namespace weft
