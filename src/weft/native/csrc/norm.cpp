// LayerNorm and RMSNorm: y = norm(x) * weight + bias. Batch-invariant.
//
// Sums are kept in four independent vectors, combined in a fixed order at the end. The tail of a
// row that fills no vector is padded with zeros.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "layer_ops.h"

namespace weft {
namespace {

constexpr int CHAINS = 4;

// Calls use(chain, vector, number of valid lanes) for the vectors of a row.
template <class Use>
inline void for_each_vector(const float* x, int64_t size, Use use) {
  int64_t i = 0;
  for (; i + W <= size; i += W) use(i / W % CHAINS, load(x + i), W);
  if (i == size) return;
  float tail[W] = {};
  std::copy(x + i, x + size, tail);
  use(i / W % CHAINS, load(tail), static_cast<int>(size - i));
}

inline float combined(const Vec (&sums)[CHAINS]) {
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

float mean(const float* x, int64_t size) {
  Vec sums[CHAINS] = {};
  for_each_vector(x, size, [&](int chain, Vec value, int) { sums[chain] += value; });
  return combined(sums) / static_cast<float>(size);
}

// Mean of (x - center)^2.
float variance(const float* x, int64_t size, float center) {
  Vec sums[CHAINS] = {};
  for_each_vector(x, size, [&](int chain, Vec value, int lanes) {
    Vec deviation = value - splat(center);
    for (int lane = lanes; lane < W; lane++) deviation[lane] = 0.0f;
    sums[chain] = fma(deviation, deviation, sums[chain]);
  });
  return combined(sums) / static_cast<float>(size);
}

}  // namespace

void norm_row(const NormWeights& norm, const float* x, float* y, int64_t size) {
  const float center = norm.is_centered ? mean(x, size) : 0.0f;
  const float factor = 1.0f / std::sqrt(variance(x, size, center) + norm.eps);
  // elementwise without sums: the compiler may vectorize it without changing bits
  for (int64_t i = 0; i < size; i++) {
    const float weight = norm.weight == nullptr ? 1.0f : norm.weight[i] + norm.offset;
    const float value = (x[i] - center) * factor * weight;
    y[i] = norm.bias == nullptr ? value : value + norm.bias[i];
  }
}

}  // namespace weft

int64_t weft_norm(const WeftNorm* norm, const float* x, float* y, int64_t rows, int64_t size,
                  int64_t x_stride, int64_t threads) {
  using namespace weft;
  constexpr int64_t MIN_PARALLEL_NUMBERS = 1 << 15;
  if (rows * size < MIN_PARALLEL_NUMBERS) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t row = 0; row < rows; row++)
    norm_row(*norm, x + row * x_stride, y + row * size, size);
  return 0;
}
