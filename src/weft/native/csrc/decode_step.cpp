// One decode step in one call: embedding, layers, final norm, LM head and top-k.
//
// The results have the bits of the operations called one by one. What is saved is the Python code
// between them, a third of the time for a small model.
#include "decode_step.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "panels.h"

EXPORT void weft_rows(const weft::Packed* weight, const int64_t* ids, int64_t num, float* y,
                      int64_t* done);
EXPORT void weft_linear(const weft::Packed* weight, const float* x, const float* bias, float* y,
                        int64_t rows, int64_t x_stride, int64_t y_stride, int64_t begin,
                        int64_t end, int64_t threads);
EXPORT void weft_log_sums(const float* rows, int64_t num, int64_t size, int64_t stride,
                          double* sums, int64_t threads);
EXPORT void weft_best(const float* rows, int64_t num, int64_t size, int64_t stride, int64_t count,
                      float* values, int64_t* ids, int64_t threads);
EXPORT void weft_head_best(const weft::Packed* weight, const float* x, const float* bias,
                           int64_t rows, int64_t x_stride, const int64_t* banned,
                           int64_t num_banned, int64_t count, float* values, int64_t* ids,
                           double* sums, int64_t threads);

namespace weft {
namespace {

// With fewer rows per thread, threads share the outputs of the head instead of the rows. The LM
// head module uses the same limit.
constexpr int64_t MIN_ROWS_PER_THREAD = 6;

// Sorts sequences by their page tables, so that those with a common prefix are adjacent.
void sort_by_pages(const PagedCall& call, std::vector<int32_t>& order) {
  const int64_t stride = call.table_stride;
  order.resize(call.sequences);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int32_t *x = call.table + a * stride, *y = call.table + b * stride;
    return std::lexicographical_compare(x, x + stride, y, y + stride);
  });
}

// KV slots, positions and sequence order of a step.
struct StepSlots {
  std::vector<int64_t> slots, positions;
  std::vector<int32_t> order, cross_order;

  void fill(LayerPass& pass) {
    const PagedCall& own = pass.own;
    const int64_t R = own.page_rows;
    slots.resize(pass.rows), positions.resize(pass.rows);
    for (int64_t n = 0; n < pass.rows; n++) {
      const int64_t at = own.starts[n];
      positions[n] = at;
      slots[n] = page_of(own, n, at / R) * R + at % R;
    }
    sort_by_pages(own, order);
    pass.slots = slots.data(), pass.turns.positions = positions.data();
    pass.own.order = order.data();
    if (pass.cross.sequences == 0) return;
    sort_by_pages(pass.cross, cross_order);
    pass.cross.order = cross_order.data();
  }
};

void embed(const Words& words, const int64_t* positions, int64_t rows, float* x) {
  const int64_t D = words.width;
  for (int64_t n = 0; n < rows; n++) {
    float* row = x + n * D;
    if (words.scale != 1.0f)
      for (int64_t i = 0; i < D; i++) row[i] *= words.scale;
    if (words.added != nullptr) {
      const float* added = words.added + positions[n] * D;
      for (int64_t i = 0; i < D; i++) row[i] += added[i];
    }
    if (words.has_norm) norm_row(words.norm, row, row, D);
  }
}

// Final norm and scale, in place.
void pre_head(const Next& next, int64_t rows, float* y) {
  const int64_t D = next.words.width;
  for (int64_t n = 0; n < rows; n++) {
    float* row = y + n * D;
    if (next.has_norm) norm_row(next.norm, row, row, D);
    if (next.head_scale != 1.0f)
      for (int64_t i = 0; i < D; i++) row[i] *= next.head_scale;
  }
}

// Few rows: threads share the outputs instead of the rows, which needs the logits in memory.
void top_k_of_logits(const Next& next, const NextCall& call, int64_t rows, const float* y) {
  static thread_local std::vector<float> logits;
  const Product& head = next.head;
  const int64_t V = head.weight->outputs, D = next.words.width;
  logits.resize(std::max<size_t>(logits.size(), rows * V));
  weft_linear(head.weight, y, head.bias, logits.data(), rows, D, V, 0, V, call.threads);
  weft_log_sums(logits.data(), rows, V, V, call.sums, call.threads);
  for (int64_t n = 0; n < rows; n++)
    for (int64_t i = 0; i < call.num_banned; i++) logits[n * V + call.banned[i]] = NEG_INF;
  weft_best(logits.data(), rows, V, V, call.count, call.values, call.found, call.threads);
}

void top_k(const Next& next, const NextCall& call, int64_t rows, const float* y) {
  const Product& head = next.head;
  if (call.threads > 1 && rows < MIN_ROWS_PER_THREAD * call.threads)
    return top_k_of_logits(next, call, rows, y);
  weft_head_best(head.weight, y, head.bias, rows, next.words.width, call.banned, call.num_banned,
                 call.count, call.values, call.found, call.sums, call.threads);
}

}  // namespace

int64_t decode_step(const Next& next, const NextCall& call) {
  static thread_local std::vector<StepSlots> slots_of_group;
  static thread_local std::vector<float> hidden;
  const int64_t rows = call.passes[0]->rows, size = rows * next.words.width;
  slots_of_group.resize(std::max<size_t>(slots_of_group.size(), call.num_passes));
  hidden.resize(std::max<size_t>(hidden.size(), 3 * size));
  float *x = hidden.data(), *y = x + size, *spare = y + size;
  int64_t done = 0;
  weft_rows(next.words.weight, call.ids, rows, x, &done);
  if (done < rows) return done;
  for (int64_t i = 0; i < call.num_passes; i++) slots_of_group[i].fill(*call.passes[i]);
  embed(next.words, slots_of_group[0].positions.data(), rows, x);
  weft_layers(next.layers, next.num_layers, call.passes, x, y, spare);
  pre_head(next, rows, y);
  top_k(next, call, rows, y);
  return done;
}

}  // namespace weft

EXPORT int64_t weft_next_size() { return sizeof(weft::Next); }
EXPORT int64_t weft_next_call_size() { return sizeof(weft::NextCall); }

EXPORT void weft_next(const weft::Next* next, const weft::NextCall* call, int64_t* done) {
  *done = weft::decode_step(*next, *call);
}
