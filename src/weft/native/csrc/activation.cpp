// Activation functions: y = act(x), or act(x) * up. Batch-invariant.
//
// Vector libraries compute the last elements of an array, which fill no vector, by a scalar routine
// that rounds differently, so that the bits of a row depend on its position. Here the tail of a row
// is padded and computed as a vector.
#include <omp.h>

#include <algorithm>

#include "layer_ops.h"

namespace weft {
namespace {

inline Vec sigmoid(Vec x) {
  const Vec bounded = x < splat(-87.0f) ? splat(-87.0f) : x;
  return splat(1.0f) / (splat(1.0f) + vexp(-bounded));
}

struct Sigmoid {
  static Vec of(Vec x) { return sigmoid(x); }
};

struct Relu {
  static Vec of(Vec x) { return x < Vec{} ? Vec{} : x; }
};

struct Silu {
  static Vec of(Vec x) { return x * sigmoid(x); }
};

struct GeluTanh {
  static Vec of(Vec x) {
    const Vec inner = fma(x * x * x, splat(0.044715f), x) * splat(0.7978845608f);
    return splat(0.5f) * x * (splat(1.0f) + vtanh(inner));
  }
};

template <int N>
inline Vec polynomial(const float (&factors)[N], Vec x) {
  Vec sum = splat(factors[0]);
  UNROLL for (int i = 1; i < N; i++) sum = fma(sum, x, splat(factors[i]));
  return sum;
}

// erfc(z) = 1 - erf(z) for z >= 1 (Cephes).
inline Vec erfc_from_1(Vec z) {
  static constexpr float MIDDLE[] = {
      2.326819970068386e-2f,  -1.387039388740657e-1f, 3.687424674597105e-1f,
      -5.824733027278666e-1f, 6.210004621745983e-1f,  -4.944515323274145e-1f,
      3.404879937665872e-1f,  -2.741127028184656e-1f, 5.638259427386472e-1f};
  static constexpr float FAR[] = {
      -1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f, 2.921019019210786e+0f,
      -1.015265279202700e+0f, 4.218463358204948e-1f, -2.820767439740514e-1f, 5.641895067754075e-1f};
  const Vec inverse = splat(1.0f) / z, square = inverse * inverse;
  const Vec part = z < splat(2.0f) ? polynomial(MIDDLE, square) : polynomial(FAR, square);
  return vexp(-z * z) * inverse * part;
}

struct Gelu {
  static Vec of(Vec x) {
    static constexpr float NEAR[] = {7.853861353153693e-5f, -8.010193625184903e-4f,
                                     5.188327685732524e-3f, -2.685381193529856e-2f,
                                     1.128358514861418e-1f, -3.761262582423300e-1f,
                                     1.128379165726710e+0f};
    const Vec z = x * splat(0.70710678f), size = z < Vec{} ? -z : z;
    const Vec near = splat(1.0f) + z * polynomial(NEAR, z * z);
    const Vec tail = erfc_from_1(vmax(size, splat(1.0f)));
    const Vec far = z < Vec{} ? tail : splat(2.0f) - tail;
    return splat(0.5f) * x * (size < splat(1.0f) ? near : far);
  }
};

template <class Act>
inline Vec result(Vec x, const float* up) {
  return up == nullptr ? Act::of(x) : Act::of(x) * load(up);
}

template <class Act>
void activate_row(const float* x, const float* up, float* y, int64_t size) {
  int64_t i = 0;
  for (; i + W <= size; i += W) store(y + i, result<Act>(load(x + i), up == nullptr ? up : up + i));
  if (i == size) return;
  float tail[W] = {}, tail_up[W] = {};
  std::copy(x + i, x + size, tail);
  if (up != nullptr) std::copy(up + i, up + size, tail_up);
  store(tail, result<Act>(load(tail), up == nullptr ? up : tail_up));
  std::copy(tail, tail + size - i, y + i);
}

}  // namespace

Activate activation(int64_t kind) {
  constexpr Activate KINDS[] = {activate_row<Sigmoid>, activate_row<Silu>, activate_row<GeluTanh>,
                                activate_row<Gelu>, activate_row<Relu>};
  return KINDS[kind];
}

}  // namespace weft

int64_t weft_activation(int64_t kind, const float* x, const float* up, float* y, int64_t rows,
                        int64_t size, int64_t x_stride, int64_t threads) {
  using namespace weft;
  constexpr int64_t MIN_PARALLEL_NUMBERS = 1 << 14;
  const Activate activate = activation(kind);
  if (rows * size < MIN_PARALLEL_NUMBERS) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t row = 0; row < rows; row++) {
    const int64_t at = row * x_stride;
    activate(x + at, up == nullptr ? up : up + at, y + row * size, size);
  }
  return 0;
}
