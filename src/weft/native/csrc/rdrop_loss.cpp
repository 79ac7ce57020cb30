// R-Drop (Liang 2021): the logits of two passes over the same tokens -> the loss of each row, and
// its gradients, which overwrite the logits.
//
//   loss      = label-smoothed cross-entropy of both + weight * (KL(p || q) + KL(q || p))
//   gradients = p - (1 - smoothing) [target] - smoothing / V
//               + weight * (p (log p - log q - KL(p || q)) + p - q)        and likewise for q
//
// Both rows stay in the L1 and L2 caches for the five passes over them; torch operations would need
// about forty passes over memory.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "abi.h"
#include "simd.h"

namespace weft {
namespace {

constexpr float PADDING_LOGIT = -1e30f;  // finite, and its exp is 0

struct LossParams {
  float smoothing, weight;
};

// A row of logits, padded to whole vectors, and its softmax.
struct Distribution {
  std::vector<float> logits, probs;
  float lse, mean;

  void read(const float* row, int64_t size, int64_t padded) {
    logits.resize(padded), probs.resize(padded);
    std::fill(std::copy(row, row + size, logits.begin()), logits.end(), PADDING_LOGIT);
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += 64) {
      float part = 0;
      for (int64_t i = begin; i < std::min(begin + 64, size); i++) part += row[i];
      sum += part;
    }
    mean = static_cast<float>(sum / static_cast<double>(size));
    softmax();
  }

  void softmax() {
    const int64_t padded = logits.size();
    Vec best = splat(PADDING_LOGIT), total = {};
    for (int64_t i = 0; i < padded; i += W) best = vmax(best, load(&logits[i]));
    const float max_logit = reduce_max(best);
    for (int64_t i = 0; i < padded; i += W) {
      const Vec prob = vexp(load(&logits[i]) - max_logit);
      store(&probs[i], prob);
      total += prob;
    }
    const float sum = reduce_add(total), factor = 1.0f / sum;
    for (int64_t i = 0; i < padded; i += W) store(&probs[i], load(&probs[i]) * factor);
    lse = max_logit + std::log(sum);
  }

  float cross_entropy(int64_t target, float smoothing) const {
    return lse - (1 - smoothing) * logits[target] - smoothing * mean;
  }
};

// KL(p || q) and KL(q || p).
struct KL {
  float p_q, q_p;

  KL(const Distribution& p, const Distribution& q) {
    const int64_t padded = p.logits.size();
    const float offset = q.lse - p.lse;
    Vec sum_p = {}, sum_q = {};
    for (int64_t i = 0; i < padded; i += W) {
      const Vec ratio = (load(&p.logits[i]) - load(&q.logits[i])) + offset;
      sum_p = fma(load(&p.probs[i]), ratio, sum_p);
      sum_q = fma(load(&q.probs[i]), ratio, sum_q);
    }
    p_q = reduce_add(sum_p), q_p = -reduce_add(sum_q);
  }
};

void write_grads(const Distribution& p, const Distribution& q, float kl, int64_t target,
                 LossParams params, float* grads, int64_t size) {
  const float offset = q.lse - p.lse - kl, spread = params.smoothing / static_cast<float>(size);
  for (int64_t i = 0; i < size; i++) {
    const float ratio = p.logits[i] - q.logits[i] + offset, prob = p.probs[i];
    grads[i] = prob - spread + params.weight * (prob * ratio + prob - q.probs[i]);
  }
  grads[target] -= 1 - params.smoothing;
}

}  // namespace
}  // namespace weft

int64_t weft_rdrop_loss(float* p_logits, float* q_logits, const int64_t* targets, double* losses,
                        int64_t rows, int64_t size, float smoothing, float weight,
                        int64_t threads) {
  using namespace weft;
  const int64_t padded = (size + W - 1) / W * W;
  const LossParams params = {smoothing, weight};
  TeamError error;
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
  {
    Distribution p, q;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
      error.run([&] {
        float *p_row = p_logits + n * size, *q_row = q_logits + n * size;
        p.read(p_row, size, padded), q.read(q_row, size, padded);
        const KL kl(p, q);
        const int64_t target = targets[n];
        losses[n] = static_cast<double>(p.cross_entropy(target, smoothing)) +
                    q.cross_entropy(target, smoothing) + weight * (kl.p_q + kl.q_p);
        write_grads(p, q, kl.p_q, target, params, p_row, size);
        write_grads(q, p, kl.q_p, target, params, q_row, size);
      });
    }
  }
  return error.code();
}
