// Top-k and log-sum-exp of rows of logits: of logits in memory, or of a product x W^T whose logits
// are computed a block at a time and never stored.
//
// Both are batch-invariant and give the same bits.
#include <omp.h>

#include <vector>

#include "int8_gemm.h"
#include "layer_ops.h"
#include "panels.h"
#include "topk.h"

namespace weft {
namespace {

constexpr int64_t MIN_PARALLEL_NUMBERS = 1 << 15;  // logits; fewer are faster on one thread
constexpr int64_t MAX_ROWS = 240;  // rows whose block of logits stays in the L2 cache

// Calls use(block, first id) for the blocks of a row; the last one is padded.
template <class Use>
inline void for_each_block(const float* row, int64_t size, Use use) {
  int64_t i = 0;
  for (; i + LOGIT_BLOCK <= size; i += LOGIT_BLOCK) use(row + i, i);
  if (i == size) return;
  float rest[LOGIT_BLOCK];
  std::fill(std::copy(row + i, row + size, rest), rest + LOGIT_BLOCK, NEG_INF);
  use(rest, i);
}

struct LinearTopKCall {
  LinearCall product;  // computed one block of outputs at a time
  const int64_t* banned;
  int64_t num_banned, count;
  float* values;
  int64_t* ids;
  double* sums;

  TopK top(int64_t row) const { return {values + row * count, ids + row * count, count}; }
};

// Banned ids count in the log-sum-exp, but are never among the top k.
void add_block(const LinearTopKCall& call, int64_t row, int64_t rows, int64_t first, float* block,
               LogSumExp* totals) {
  for (int64_t r = 0; r < rows; r++) totals[r].add(block + r * LOGIT_BLOCK);
  for (int64_t i = 0; i < call.num_banned; i++) {
    const int64_t at = call.banned[i] - first;
    if (at < 0 || at >= LOGIT_BLOCK) continue;
    for (int64_t r = 0; r < rows; r++) block[r * LOGIT_BLOCK + at] = NEG_INF;
  }
  for (int64_t r = 0; r < rows; r++) call.top(row + r).add_block(block + r * LOGIT_BLOCK, first);
}

void top_k_of_rows(const LinearTopKCall& call, int64_t row, int64_t rows) {
  static thread_local std::vector<float> block(MAX_ROWS * LOGIT_BLOCK);
  std::vector<LogSumExp> totals(rows);
  LinearCall part = call.product;
  part.x += row * part.x_stride, part.rows = rows, part.y = block.data(),
                                 part.y_stride = LOGIT_BLOCK;
  Int8Rows int8_rows;  // quantized once for all blocks
  if (part.weight->int8_activations) {
    int8_rows.quantize(part, 0, rows);
    part.int8_rows = &int8_rows;
  }
  for (int64_t r = 0; r < rows; r++) call.top(row + r).begin();
  for (int64_t first = 0; first < call.product.end; first += LOGIT_BLOCK) {
    part.begin = first, part.end = std::min(first + LOGIT_BLOCK, call.product.end);
    if (part.end - first < LOGIT_BLOCK) std::fill(block.begin(), block.end(), NEG_INF);
    linear_single_thread(part);
    add_block(call, row, rows, first, block.data(), totals.data());
  }
  for (int64_t r = 0; r < rows; r++) call.sums[row + r] = totals[r].result();
}

}  // namespace
}  // namespace weft

int64_t weft_log_sum_exp(const float* logits, int64_t rows, int64_t size, int64_t stride,
                         double* sums, int64_t threads) {
  using namespace weft;
  if (rows * size < MIN_PARALLEL_NUMBERS) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t n = 0; n < rows; n++) {
    LogSumExp total;
    for_each_block(logits + n * stride, size,
                   [&](const float* block, int64_t) { total.add(block); });
    sums[n] = total.result();
  }
  return 0;
}

int64_t weft_top_k(const float* logits, int64_t rows, int64_t size, int64_t stride, int64_t k,
                   float* values, int64_t* ids, int64_t threads) {
  using namespace weft;
  if (rows * size < MIN_PARALLEL_NUMBERS) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t n = 0; n < rows; n++) {
    TopK top{values + n * k, ids + n * k, k};
    top.begin();
    for_each_block(logits + n * stride, size,
                   [&](const float* block, int64_t first) { top.add_block(block, first); });
  }
  return 0;
}

// Threads share the rows, so there should be several per thread.
int64_t weft_linear_top_k(const WeftPackedMatrix* matrix, const float* x, const float* bias,
                          int64_t rows, int64_t x_stride, const int64_t* banned, int64_t num_banned,
                          int64_t k, float* values, int64_t* ids, double* sums, int64_t threads) {
  using namespace weft;
  const LinearCall product{matrix, x, bias, nullptr, rows, x_stride, 0, 0, matrix->outputs};
  const LinearTopKCall call{product, banned, num_banned, k, values, ids, sums};
  const int64_t parts = std::max(threads, (rows + MAX_ROWS - 1) / MAX_ROWS);
  TeamError error;
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t part = 0; part < parts; part++) {
    const int64_t row = rows * part / parts, end = rows * (part + 1) / parts;
    if (end > row) error.run([&] { top_k_of_rows(call, row, end - row); });
  }
  return error.code();
}
