// What is known of a row of logits after some of its blocks: its few best, and the sum of its exps.
//
// Blocks of BLOCK logits come from left to right, whether they lie in memory or were just made: so
// both ways give the same bits. Of equal logits the one that stands first is better.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace weft {

constexpr int64_t BLOCK = 64;  // what is not there is NOTHING

// The logarithm of the sum of exps, against the largest logit so far (Milakov 2018). Blocks are
// added in double: among 100,000 words the small ones would be lost in one float.
struct LogSum {
  float peak = NOTHING;
  double sum = 0;

  void add(const float* block) {
    Vec best = load(block);
    UNROLL for (int64_t i = W; i < BLOCK; i += W) best = larger(best, load(block + i));
    const float largest = largest_lane(best);
    if (largest > peak) {
      sum *= exp_of(splat(peak - largest))[0];
      peak = largest;
    }
    const Vec shift = splat(base());
    Vec part = {};
    UNROLL for (int64_t i = 0; i < BLOCK; i += W) part += exp_of(load(block + i) - shift);
    sum += sum_of_lanes(part);
  }

  float base() const { return peak == NOTHING ? 0.0f : peak; }
  double result() const { return base() + std::log(sum); }
};

inline bool any_larger(Vec value, Vec than) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(value, than, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_movemask_ps(_mm256_cmp_ps(value, than, _CMP_GT_OQ)) != 0;
#else
  return largest_lane(value) > than[0];
#endif
}

struct Best {
  float* values;
  int64_t* ids;
  int64_t count;

  void begin() {
    for (int64_t i = 0; i < count; i++) values[i] = NOTHING, ids[i] = i;
  }

  void add(float value, int64_t id) {
    int64_t at = count - 1;
    if (!(value > values[at])) return;
    for (; at > 0 && value > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value, ids[at] = id;
  }

  void add_block(const float* block, int64_t first) {
    for (int64_t i = 0; i < BLOCK; i += W) {
      const Vec value = load(block + i);
      if (!any_larger(value, splat(values[count - 1]))) continue;
      for (int lane = 0; lane < W; lane++) add(value[lane], first + i + lane);
    }
  }
};

}  // namespace weft
