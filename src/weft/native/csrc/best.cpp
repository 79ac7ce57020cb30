// The few best of each row of logits, and the logarithm of the sum of their exps: of logits that lie
// in memory, or of a product's, which then never do.
//
// Rows do not know each other: a row's results are the same bits in any company, and both ways.
#include <omp.h>

#include <vector>

#include "panels.h"
#include "ranked.h"
#include "rounded.h"
#include "rows.h"

namespace weft {
namespace {

constexpr int64_t LITTLE = 1 << 15;  // numbers that one thread does sooner than two
constexpr int64_t MOST_ROWS = 240;   // whose block of logits stays in the second-level cache

// Calls use(block, first) for the blocks of a row.
template <class Use>
inline void each_block(const float* row, int64_t size, Use use) {
  int64_t i = 0;
  for (; i + BLOCK <= size; i += BLOCK) use(row + i, i);
  if (i == size) return;
  float rest[BLOCK];
  std::fill(std::copy(row + i, row + size, rest), rest + BLOCK, NOTHING);
  use(rest, i);
}

struct HeadCall {
  LinearCall product;  // of one block at a time
  const int64_t* banned;
  int64_t num_banned, count;
  float* values;
  int64_t* ids;
  double* sums;

  Best best(int64_t row) const { return {values + row * count, ids + row * count, count}; }
};

// Banned logits count in the sums, but are never among the best.
void rank_block(const HeadCall& call, int64_t row, int64_t rows, int64_t first, float* block,
                LogSum* totals) {
  for (int64_t r = 0; r < rows; r++) totals[r].add(block + r * BLOCK);
  for (int64_t i = 0; i < call.num_banned; i++) {
    const int64_t at = call.banned[i] - first;
    if (at < 0 || at >= BLOCK) continue;
    for (int64_t r = 0; r < rows; r++) block[r * BLOCK + at] = NOTHING;
  }
  for (int64_t r = 0; r < rows; r++) call.best(row + r).add_block(block + r * BLOCK, first);
}

void rank_rows(const HeadCall& call, int64_t row, int64_t rows) {
  static thread_local std::vector<float> block(MOST_ROWS * BLOCK);
  std::vector<LogSum> totals(rows);
  LinearCall part = call.product;
  part.x += row * part.x_stride, part.rows = rows, part.y = block.data(), part.y_stride = BLOCK;
  RoundedRows rounded;  // once for all blocks
  if (part.weight->is_rounded) {
    rounded.cover(part, 0, rows);
    part.rounded = &rounded;
  }
  for (int64_t r = 0; r < rows; r++) call.best(row + r).begin();
  for (int64_t first = 0; first < call.product.end; first += BLOCK) {
    part.begin = first, part.end = std::min(first + BLOCK, call.product.end);
    if (part.end - first < BLOCK) std::fill(block.begin(), block.end(), NOTHING);
    linear_part(part);
    rank_block(call, row, rows, first, block.data(), totals.data());
  }
  for (int64_t r = 0; r < rows; r++) call.sums[row + r] = totals[r].result();
}

}  // namespace
}  // namespace weft

EXPORT void weft_log_sums(const float* rows, int64_t num, int64_t size, int64_t stride, double* sums,
                          int64_t threads) {
  using namespace weft;
  if (num * size < LITTLE) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t n = 0; n < num; n++) {
    LogSum total;
    each_block(rows + n * stride, size, [&](const float* block, int64_t) { total.add(block); });
    sums[n] = total.result();
  }
}

EXPORT void weft_best(const float* rows, int64_t num, int64_t size, int64_t stride, int64_t count,
                      float* values, int64_t* ids, int64_t threads) {
  using namespace weft;
  if (num * size < LITTLE) threads = 1;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t n = 0; n < num; n++) {
    Best best{values + n * count, ids + n * count, count};
    best.begin();
    each_block(rows + n * stride, size,
               [&](const float* block, int64_t first) { best.add_block(block, first); });
  }
}

// The best of x W^T + bias; rows are divided among the threads, so there should be many.
EXPORT void weft_head_best(const weft::Packed* weight, const float* x, const float* bias,
                           int64_t rows, int64_t x_stride, const int64_t* banned,
                           int64_t num_banned, int64_t count, float* values, int64_t* ids,
                           double* sums, int64_t threads) {
  using namespace weft;
  const LinearCall product{weight, x, bias, nullptr, rows, x_stride, 0, 0, weight->outputs};
  const HeadCall call{product, banned, num_banned, count, values, ids, sums};
  const int64_t parts = std::max(threads, (rows + MOST_ROWS - 1) / MOST_ROWS);
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t part = 0; part < parts; part++) {
    const int64_t row = rows * part / parts, end = rows * (part + 1) / parts;
    if (end > row) rank_rows(call, row, end - row);
  }
}
