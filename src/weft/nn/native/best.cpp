// The few best of each row of logits, and the logarithm of the sum of their exps.
//
// Rows do not know each other: a row's results are the same bits in any company. Of equal numbers
// the one that stands first is better.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace weft {
namespace {

constexpr int64_t LITTLE = 1 << 15;  // numbers that one thread does sooner than two
constexpr float NOTHING = -__builtin_inff();
constexpr int CHAINS = 4;

// Calls use(first number, vector) for a row's vectors; behind its end there is nothing.
template <class Use>
inline void each_vector(const float* row, int64_t size, Use use) {
  int64_t i = 0;
  for (; i + W <= size; i += W) use(i, load(row + i));
  if (i == size) return;
  float rest[W];
  std::fill(std::copy(row + i, row + size, rest), rest + W, NOTHING);
  use(i, load(rest));
}

double log_sum(const float* row, int64_t size) {
  Vec best[CHAINS], sums[CHAINS] = {};
  std::fill(best, best + CHAINS, splat(NOTHING));
  each_vector(row, size, [&](int64_t i, Vec value) {
    const int chain = i / W % CHAINS;
    best[chain] = larger(best[chain], value);
  });
  const Vec most = larger(larger(best[0], best[1]), larger(best[2], best[3]));
  const float largest = largest_lane(most), peak = largest == NOTHING ? 0.0f : largest;
  each_vector(row, size,
              [&](int64_t i, Vec value) { sums[i / W % CHAINS] += exp_of(value - peak); });
  const float sum = sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return peak + std::log(static_cast<double>(sum));
}

struct Best {
  float* values;
  int64_t* ids;
  int64_t count;

  void begin() {
    for (int64_t i = 0; i < count; i++) values[i] = NOTHING, ids[i] = i;
  }

  float worst() const { return values[count - 1]; }

  void add(float value, int64_t id) {
    if (!(value > worst())) return;
    int64_t at = count - 1;
    for (; at > 0 && value > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value, ids[at] = id;
  }
};

bool any_larger(Vec value, Vec than) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(value, than, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_movemask_ps(_mm256_cmp_ps(value, than, _CMP_GT_OQ)) != 0;
#else
  return largest_lane(value) > than[0];
#endif
}

void choose(const float* row, int64_t size, Best best) {
  best.begin();
  each_vector(row, size, [&](int64_t i, Vec value) {
    if (!any_larger(value, splat(best.worst()))) return;
    for (int lane = 0; lane < W; lane++) best.add(value[lane], i + lane);
  });
}

}  // namespace
}  // namespace weft

EXPORT void weft_log_sums(const float* rows, int64_t num, int64_t size, int64_t stride, double* sums,
                          int64_t threads) {
  using namespace weft;
  if (num * size < LITTLE) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t n = 0; n < num; n++) sums[n] = log_sum(rows + n * stride, size);
}

EXPORT void weft_best(const float* rows, int64_t num, int64_t size, int64_t stride, int64_t count,
                      float* values, int64_t* ids, int64_t threads) {
  using namespace weft;
  if (num * size < LITTLE) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t n = 0; n < num; n++)
    choose(rows + n * stride, size, {values + n * count, ids + n * count, count});
}
