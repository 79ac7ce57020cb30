// One decode step in one call: embedding, layers, final norm, LM head and top-k.
//
// The results have the bits of the operations called one by one. What is saved is the Python code
// between them, a third of the time for a small model.
#include "decode_step.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "layer_ops.h"
#include "pages.h"

namespace weft {
namespace {

// With fewer rows per thread, threads share the outputs of the head instead of the rows. The LM
// head module uses the same limit.
constexpr int64_t MIN_ROWS_PER_THREAD = 6;

// Sorts sequences by their page tables, so that those with a common prefix are adjacent.
void sort_by_pages(const PagedAttentionCall& call, std::vector<int32_t>& order) {
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
    const PagedAttentionCall& self = pass.self;
    const int64_t R = self.page_rows;
    slots.resize(pass.rows), positions.resize(pass.rows);
    for (int64_t n = 0; n < pass.rows; n++) {
      const int64_t at = self.starts[n];
      positions[n] = at;
      slots[n] = page_of(self, n, at / R) * R + at % R;
    }
    sort_by_pages(self, order);
    pass.slots = slots.data(), pass.rotary.positions = positions.data();
    pass.self.order = order.data();
    if (pass.cross.sequences == 0) return;
    sort_by_pages(pass.cross, cross_order);
    pass.cross.order = cross_order.data();
  }
};

void embed(const EmbeddingWeights& embedding, const int64_t* positions, int64_t rows, float* x) {
  const int64_t D = embedding.width;
  for (int64_t n = 0; n < rows; n++) {
    float* row = x + n * D;
    if (embedding.scale != 1.0f)
      for (int64_t i = 0; i < D; i++) row[i] *= embedding.scale;
    if (embedding.added != nullptr) {
      const float* added = embedding.added + positions[n] * D;
      for (int64_t i = 0; i < D; i++) row[i] += added[i];
    }
    if (embedding.has_norm) norm_row(embedding.norm, row, row, D);
  }
}

// Final norm and scale, in place.
void pre_head(const DecoderWeights& decoder, int64_t rows, float* y) {
  const int64_t D = decoder.embedding.width;
  for (int64_t n = 0; n < rows; n++) {
    float* row = y + n * D;
    if (decoder.has_norm) norm_row(decoder.norm, row, row, D);
    if (decoder.head_scale != 1.0f)
      for (int64_t i = 0; i < D; i++) row[i] *= decoder.head_scale;
  }
}

// Few rows: threads share the outputs instead of the rows, which needs the logits in memory.
void top_k_of_logits(const DecoderWeights& decoder, const DecodeStep& step, int64_t rows,
                     const float* y) {
  static thread_local std::vector<float> logits;
  const LinearWeights& head = decoder.head;
  const int64_t V = head.matrix->outputs, D = decoder.embedding.width;
  logits.resize(std::max<size_t>(logits.size(), rows * V));
  throw_error(
      weft_linear(head.matrix, y, head.bias, logits.data(), rows, D, V, 0, V, step.threads));
  throw_error(weft_log_sum_exp(logits.data(), rows, V, V, step.log_sum_exp, step.threads));
  for (int64_t n = 0; n < rows; n++)
    for (int64_t i = 0; i < step.num_banned; i++) logits[n * V + step.banned[i]] = NEG_INF;
  throw_error(
      weft_top_k(logits.data(), rows, V, V, step.k, step.top_values, step.top_ids, step.threads));
}

void top_k(const DecoderWeights& decoder, const DecodeStep& step, int64_t rows, const float* y) {
  const LinearWeights& head = decoder.head;
  if (step.threads > 1 && rows < MIN_ROWS_PER_THREAD * step.threads)
    return top_k_of_logits(decoder, step, rows, y);
  throw_error(weft_linear_top_k(head.matrix, y, head.bias, rows, decoder.embedding.width,
                                step.banned, step.num_banned, step.k, step.top_values, step.top_ids,
                                step.log_sum_exp, step.threads));
}

}  // namespace

int64_t decode_step(const DecoderWeights& decoder, const DecodeStep& step) {
  static thread_local std::vector<StepSlots> slots_of_group;
  static thread_local std::vector<float> hidden;
  const int64_t rows = step.passes[0]->rows, size = rows * decoder.embedding.width;
  slots_of_group.resize(std::max<size_t>(slots_of_group.size(), step.num_passes));
  hidden.resize(std::max<size_t>(hidden.size(), 3 * size));
  float *x = hidden.data(), *y = x + size, *spare = y + size;
  const int64_t num_valid = weft_embedding_rows(decoder.embedding.matrix, step.ids, rows, x);
  if (num_valid < rows) return num_valid;
  for (int64_t i = 0; i < step.num_passes; i++) slots_of_group[i].fill(*step.passes[i]);
  embed(decoder.embedding, slots_of_group[0].positions.data(), rows, x);
  throw_error(weft_layers(decoder.layers, decoder.num_layers, step.passes, x, y, spare));
  pre_head(decoder, rows, y);
  top_k(decoder, step, rows, y);
  return rows;
}

}  // namespace weft

int64_t weft_decode_step(const WeftDecoder* decoder, const WeftDecodeStep* step) {
  return weft::guarded([&] { return weft::decode_step(*decoder, *step); });
}
