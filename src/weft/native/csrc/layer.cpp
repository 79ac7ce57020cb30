// Transformer layers in one call: x_ND -> y_ND by paged self-attention, cross-attention and
// feed-forward, each with its residual connection and norms.
//
// The results have the bits of the operations called one by one. What is saved is the Python code
// between them, which takes longer than the arithmetic when each sequence has one token. One thread
// team runs a whole layer, with a barrier after each operation.
#include <omp.h>

#include <algorithm>
#include <utility>

#include "layer_ops.h"
#include "pages.h"

namespace weft {
namespace {

enum Placement : int64_t { BEFORE, AFTER, BOTH };

// Offsets of keys and values in a row of the fused projection, its size, and that of all heads.
int64_t keys_at(const AttentionWeights& w) { return w.heads * w.head_size; }
int64_t values_at(const AttentionWeights& w) { return keys_at(w) + w.key_heads * w.head_size; }
int64_t qkv_size(const AttentionWeights& w) { return values_at(w) + w.key_heads * w.value_size; }
int64_t out_size(const AttentionWeights& w) { return w.heads * w.value_size; }

// Buffers for intermediate results inside `pass.scratch`, whose size the caller computes.
struct Buffers {
  Buffers(const LayerWeights& layer, const LayerPass& pass) {
    const int64_t N = pass.rows;
    normed = pass.scratch;
    result = normed + N * layer.width;
    qkv = result + N * layer.width;
    joined = qkv + N * std::max(qkv_size(layer.self), keys_at(layer.cross));
    inner = joined + N * std::max(out_size(layer.self), out_size(layer.cross));
    activated = inner + N * layer.inner * (layer.is_gated ? 2 : 1);
  }
  float *normed, *result, *qkv, *joined, *inner, *activated;
};

struct LayerRun {
  const PlacedLayer& where;
  const LayerWeights& layer;
  const LayerPass& pass;
  TeamError& error;
  Buffers at;

  void multiply(const LinearWeights& product, const float* x, int64_t inputs, float* y,
                int64_t outputs) {
    linear_team({product.matrix, x, product.bias, y, pass.rows, inputs, outputs, 0, outputs},
                pass.threads, error);
  }

  // Input of a sublayer: norm(x) with pre-norm placement, else x.
  const float* pre_norm(const NormWeights& norm, const float* x) {
    if (layer.placement == AFTER) return x;
    const int64_t D = layer.width;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < pass.rows; n++) norm_row(norm, x + n * D, at.normed + n * D, D);
    return at.normed;
  }

  // y = x + sublayer output, with the norms after it. No barrier: the next operation either assigns
  // each row to the same thread (static schedule), or comes after a barrier or the end of the
  // layer.
  void add_residual(const ResidualNorms& path, const float* x, float* y) {
    const int64_t D = layer.width;
#pragma omp for schedule(static) nowait
    for (int64_t n = 0; n < pass.rows; n++) {
      const float* from = x + n * D;
      float *result = at.result + n * D, *to = y + n * D;
      if (layer.placement == BOTH) norm_row(path.norm_out, result, result, D);
      float* sum = layer.placement == AFTER ? result : to;
      for (int64_t i = 0; i < D; i++) sum[i] = from[i] + result[i];
      if (layer.placement == AFTER) norm_row(path.norm, result, to, D);
    }
  }

  void rotate(float* head, int64_t n) {
    const RotaryTable& rotary = pass.rotary;
    const int64_t at = rotary.positions[n] * rotary.stride;
    const float *cos = rotary.cos + at, *sin = rotary.sin + at;
    const int64_t half = rotary.size / 2, step = rotary.is_interleaved ? 2 : 1;
    const int64_t gap = rotary.is_interleaved ? 1 : half;
    for (int64_t pair = 0; pair < half; pair++) {
      const int64_t i = pair * step, j = i + gap;
      const float a = head[i], b = head[j];
      head[i] = a * cos[i] + b * sin[i];
      head[j] = b * cos[j] + a * sin[j];
    }
  }

  void norm_and_rotate(float* head, const NormWeights& norm, int64_t n) {
    const AttentionWeights& self = layer.self;
    if (self.has_norms) norm_row(norm, head, head, self.head_size);
    if (pass.rotary.cos != nullptr) rotate(head, n);
  }

  // Applies QK-norm and RoPE to queries and keys in place, and writes keys and values to their
  // pages.
  void store_row(int64_t n) {
    const AttentionWeights& self = layer.self;
    float* row = at.qkv + n * qkv_size(self);
    float *keys = row + keys_at(self), *values = row + values_at(self);
    for (int64_t h = 0; h < self.heads; h++)
      norm_and_rotate(row + h * self.head_size, self.query_norm, n);
    for (int64_t h = 0; h < self.key_heads; h++)
      norm_and_rotate(keys + h * self.head_size, self.key_norm, n);
    std::copy(keys, values, where.k + pass.slots[n] * pass.self.k_stride.row);
    std::copy(values, row + qkv_size(self), where.v + pass.slots[n] * pass.self.v_stride.row);
  }

  void attend(const AttentionWeights& heads, PagedAttentionCall call, const float* k,
              const float* v, const std::vector<QueryBlock>& blocks, int64_t q_row) {
    call.q = at.qkv, call.k = k, call.v = v, call.out = at.joined, call.lse = nullptr;
    call.q_token = q_row, call.q_head = heads.head_size;
    attend_blocks(call, blocks, pass.threads, error);
    multiply(heads.out, at.joined, out_size(heads), at.result, layer.width);
  }

  void self_attention(const std::vector<QueryBlock>& blocks, const float* x, float* y) {
    const AttentionWeights& self = layer.self;
    multiply(self.qkv, pre_norm(layer.self_norms.norm, x), layer.width, at.qkv, qkv_size(self));
#pragma omp for schedule(static)
    for (int64_t n = 0; n < pass.rows; n++) store_row(n);
    attend(self, pass.self, where.k, where.v, blocks, qkv_size(self));
    add_residual(layer.self_norms, x, y);
  }

  void cross_attention(const std::vector<QueryBlock>& blocks, float* y) {
    const AttentionWeights& cross = layer.cross;
    const float* input = pre_norm(layer.cross_norms.norm, y);
    if (layer.placement == AFTER) {
#pragma omp barrier
    }
    multiply(cross.qkv, input, layer.width, at.qkv, keys_at(cross));
    if (cross.has_norms) {
      const int64_t C = cross.head_size;
#pragma omp for schedule(static)
      for (int64_t h = 0; h < pass.rows * cross.heads; h++)
        norm_row(cross.query_norm, at.qkv + h * C, at.qkv + h * C, C);
    }
    attend(cross, pass.cross, where.cross_k, where.cross_v, blocks, keys_at(cross));
    add_residual(layer.cross_norms, y, y);
  }

  void feedforward(float* y) {
    const int64_t F = layer.inner, stride = layer.is_gated ? 2 * F : F;
    const float* input = pre_norm(layer.feedforward_norms.norm, y);
    if (layer.placement == AFTER) {
#pragma omp barrier
    }
    multiply(layer.up, input, layer.width, at.inner, stride);
    const Activate activate = activation(layer.activation);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < pass.rows; n++) {
      const float* row = at.inner + n * stride;
      activate(row, layer.is_gated ? row + F : nullptr, at.activated + n * F, F);
    }
    multiply(layer.down, at.activated, F, at.result, layer.width);
    add_residual(layer.feedforward_norms, y, y);
  }
};

void run_layer(const PlacedLayer& where, const LayerPass& pass, const float* x, float* y) {
  const LayerWeights& layer = *where.layer;
  TeamError error;
  const LayerRun run{where, layer, pass, error, Buffers(layer, pass)};
  const std::vector<QueryBlock> self = split_queries(pass.self);
  const std::vector<QueryBlock> cross =
      layer.has_cross ? split_queries(pass.cross) : std::vector<QueryBlock>();
#pragma omp parallel num_threads(static_cast<int>(pass.threads)) if (pass.threads > 1)
  {
    LayerRun local = run;
    local.self_attention(self, x, y);
    if (layer.has_cross) local.cross_attention(cross, y);
    local.feedforward(y);
  }
  throw_error(error.code());
}

}  // namespace
}  // namespace weft

int64_t weft_layers(const WeftPlacedLayer* layers, int64_t num, WeftLayerPass* const* passes,
                    const float* x, float* y, float* other) {
  return weft::guarded([&] {
    if (num % 2 == 0) std::swap(y, other);
    for (int64_t i = 0; i < num; i++) {
      weft::run_layer(layers[i], *passes[layers[i].pass_index], x, y);
      x = y;
      std::swap(y, other);
    }
    return int64_t{0};
  });
}
