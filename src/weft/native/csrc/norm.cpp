// y = norm(x) * weight + bias for rows that do not know each other: layernorm and rmsnorm.
//
// Sums run over four vectors side by side, which are joined in one order at the end; a row's last
// numbers, where they fill no vector, are added as a vector with zeros behind them.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace weft {
namespace {

constexpr int CHAINS = 4;

// Calls use(chain, vector, number of its real lanes) for a row's vectors.
template <class Use>
inline void each_vector(const float* x, int64_t size, Use use) {
  int64_t i = 0;
  for (; i + W <= size; i += W) use(i / W % CHAINS, load(x + i), W);
  if (i == size) return;
  float rest[W] = {};
  std::copy(x + i, x + size, rest);
  use(i / W % CHAINS, load(rest), static_cast<int>(size - i));
}

inline float joined(const Vec (&sums)[CHAINS]) {
  return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

float mean_of(const float* x, int64_t size) {
  Vec sums[CHAINS] = {};
  each_vector(x, size, [&](int chain, Vec value, int) { sums[chain] += value; });
  return joined(sums) / static_cast<float>(size);
}

// Mean of (x - centre)^2.
float spread_of(const float* x, int64_t size, float centre) {
  Vec sums[CHAINS] = {};
  each_vector(x, size, [&](int chain, Vec value, int lanes) {
    Vec gap = value - splat(centre);
    for (int lane = lanes; lane < W; lane++) gap[lane] = 0.0f;
    sums[chain] = fma(gap, gap, sums[chain]);
  });
  return joined(sums) / static_cast<float>(size);
}

}  // namespace

void norm_row(const Norm& norm, const float* x, float* y, int64_t size) {
  const float centre = norm.is_centred ? mean_of(x, size) : 0.0f;
  const float factor = 1.0f / std::sqrt(spread_of(x, size, centre) + norm.eps);
  // number by number and without sums: the compiler's vectors have the bits of the plain loop
  for (int64_t i = 0; i < size; i++) {
    const float weight = norm.weight == nullptr ? 1.0f : norm.weight[i] + norm.offset;
    const float value = (x[i] - centre) * factor * weight;
    y[i] = norm.bias == nullptr ? value : value + norm.bias[i];
  }
}

}  // namespace weft

EXPORT int64_t weft_norm_size() { return sizeof(weft::Norm); }

EXPORT void weft_norm(const weft::Norm* norm, const float* x, float* y, int64_t rows, int64_t size,
                      int64_t x_stride, int64_t threads) {
  using namespace weft;
  constexpr int64_t LITTLE = 1 << 15;
  if (rows * size < LITTLE) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t row = 0; row < rows; row++)
    norm_row(*norm, x + row * x_stride, y + row * size, size);
}
