// Top-k and log-sum-exp of a row of logits, updated with one block of logits after another.
//
// Blocks of LOGIT_BLOCK logits are added from left to right, whether the logits are in memory or
// were just computed by a product: both have the same bits. Of equal logits the lowest id comes
// first.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace weft {

constexpr int64_t LOGIT_BLOCK = 64;  // padded with NEG_INF

// Online log-sum-exp, relative to the largest logit so far (Milakov 2018). Blocks are added in
// double: with a vocabulary of 100,000 a float sum would lose the small terms.
struct LogSumExp {
  float max_logit = NEG_INF;
  double sum = 0;

  void add(const float* block) {
    Vec best = load(block);
    UNROLL for (int64_t i = W; i < LOGIT_BLOCK; i += W) best = vmax(best, load(block + i));
    const float largest = reduce_max(best);
    if (largest > max_logit) {
      sum *= vexp(splat(max_logit - largest))[0];
      max_logit = largest;
    }
    const Vec shift = splat(shift_of_max());
    Vec part = {};
    UNROLL for (int64_t i = 0; i < LOGIT_BLOCK; i += W) part += vexp(load(block + i) - shift);
    sum += reduce_add(part);
  }

  float shift_of_max() const { return max_logit == NEG_INF ? 0.0f : max_logit; }
  double result() const { return shift_of_max() + std::log(sum); }
};

inline bool any_greater(Vec value, Vec than) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(value, than, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_movemask_ps(_mm256_cmp_ps(value, than, _CMP_GT_OQ)) != 0;
#else
  return reduce_max(value) > than[0];
#endif
}

struct TopK {
  float* values;
  int64_t* ids;
  int64_t count;

  void begin() {
    for (int64_t i = 0; i < count; i++) values[i] = NEG_INF, ids[i] = i;
  }

  void add(float value, int64_t id) {
    int64_t at = count - 1;
    if (!(value > values[at])) return;
    for (; at > 0 && value > values[at - 1]; at--)
      values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value, ids[at] = id;
  }

  void add_block(const float* block, int64_t first) {
    for (int64_t i = 0; i < LOGIT_BLOCK; i += W) {
      const Vec value = load(block + i);
      if (!any_greater(value, splat(values[count - 1]))) continue;
      for (int lane = 0; lane < W; lane++) add(value[lane], first + i + lane);
    }
  }
};

}  // namespace weft
