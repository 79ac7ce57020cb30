// R-Drop on two passes over the same tokens: rows of logits -> the loss of a row, and its slopes,
// which are written over the logits.
//
//   loss   = sum of both passes' label-smoothed losses + weight * (KL(p || q) + KL(q || p))
//   slopes = p - (1 - smoothing) [target] - smoothing / V
//            + weight * (p (log p - log q - KL(p || q)) + p - q)        and likewise for q
//
// A row of both stays in the processor's nearest caches while it is walked over five times; as
// operations of torch these are some forty walks through memory.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

namespace weft {
namespace {

constexpr float NO_LOGIT = -1e30f;  // behind a row's end: finite, and its exp is 0

struct Rule {
  float smoothing, weight;
};

// A row of logits, padded to whole vectors, and what its softmax needs.
struct Pass {
  std::vector<float> logits, shares;
  float lse, mean;

  void read(const float* row, int64_t size, int64_t padded) {
    logits.resize(padded), shares.resize(padded);
    std::fill(std::copy(row, row + size, logits.begin()), logits.end(), NO_LOGIT);
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += 64) {
      float part = 0;
      for (int64_t i = begin; i < std::min(begin + 64, size); i++) part += row[i];
      sum += part;
    }
    mean = static_cast<float>(sum / static_cast<double>(size));
    soften();
  }

  void soften() {
    const int64_t padded = logits.size();
    Vec best = splat(NO_LOGIT), total = {};
    for (int64_t i = 0; i < padded; i += W) best = larger(best, load(&logits[i]));
    const float peak = largest_lane(best);
    for (int64_t i = 0; i < padded; i += W) {
      const Vec share = exp_of(load(&logits[i]) - peak);
      store(&shares[i], share);
      total += share;
    }
    const float sum = sum_of_lanes(total), factor = 1.0f / sum;
    for (int64_t i = 0; i < padded; i += W) store(&shares[i], load(&shares[i]) * factor);
    lse = peak + std::log(sum);
  }

  float smoothed(int64_t target, float smoothing) const {
    return lse - (1 - smoothing) * logits[target] - smoothing * mean;
  }
};

// KL(p || q) and KL(q || p).
struct Gaps {
  float there, back;

  Gaps(const Pass& p, const Pass& q) {
    const int64_t padded = p.logits.size();
    const float offset = q.lse - p.lse;
    Vec ahead = {}, behind = {};
    for (int64_t i = 0; i < padded; i += W) {
      const Vec ratio = (load(&p.logits[i]) - load(&q.logits[i])) + offset;
      ahead = fma(load(&p.shares[i]), ratio, ahead);
      behind = fma(load(&q.shares[i]), ratio, behind);
    }
    there = sum_of_lanes(ahead), back = -sum_of_lanes(behind);
  }
};

void write_slopes(const Pass& p, const Pass& q, float gap, int64_t target, Rule rule, float* slopes,
                  int64_t size) {
  const float offset = q.lse - p.lse - gap, spread = rule.smoothing / static_cast<float>(size);
  for (int64_t i = 0; i < size; i++) {
    const float ratio = p.logits[i] - q.logits[i] + offset, share = p.shares[i];
    slopes[i] = share - spread + rule.weight * (share * ratio + share - q.shares[i]);
  }
  slopes[target] -= 1 - rule.smoothing;
}

}  // namespace
}  // namespace weft

EXPORT void weft_agreement(float* p_rows, float* q_rows, const int64_t* targets, double* losses,
                           int64_t rows, int64_t size, float smoothing, float weight,
                           int64_t threads) {
  using namespace weft;
  const int64_t padded = (size + W - 1) / W * W;
  const Rule rule = {smoothing, weight};
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
  {
    Pass p, q;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
      float *p_row = p_rows + n * size, *q_row = q_rows + n * size;
      p.read(p_row, size, padded), q.read(q_row, size, padded);
      const Gaps gaps(p, q);
      const int64_t target = targets[n];
      losses[n] = static_cast<double>(p.smoothed(target, smoothing)) +
                  q.smoothed(target, smoothing) + weight * (gaps.there + gaps.back);
      write_slopes(p, q, gaps.there, target, rule, p_row, size);
      write_slopes(q, p, gaps.back, target, rule, q_row, size);
    }
  }
}
