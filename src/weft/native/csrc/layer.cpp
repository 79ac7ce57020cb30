// Transformer layers in one call: x_ND -> y_ND by paged self-attention, cross-attention and
// feed-forward, each with its residual connection and norms.
//
// The results have the bits of the operations called one by one. What is saved is the Python code
// between them, which takes longer than the arithmetic when each sequence has one token. One thread
// team runs a whole layer, with a barrier after each operation.
#include "layer.h"

#include <omp.h>

#include <algorithm>
#include <utility>

namespace weft {
namespace {

enum Placement : int64_t { BEFORE, AFTER, BOTH };

// Buffers for intermediate results inside `pass.scratch`, whose size the caller computes.
struct Buffers {
  Buffers(const Layer& layer, const LayerPass& pass) {
    const int64_t N = pass.rows;
    normed = pass.scratch;
    result = normed + N * layer.width;
    qkv = result + N * layer.width;
    joined = qkv + N * std::max(layer.own.row(), layer.cross.keys_at());
    inner = joined + N * std::max(layer.own.joined(), layer.cross.joined());
    activated = inner + N * layer.inner * (layer.is_gated ? 2 : 1);
  }
  float *normed, *result, *qkv, *joined, *inner, *activated;
};

struct LayerRun {
  const LayerAt& where;
  const Layer& layer;
  const LayerPass& pass;
  Buffers at;

  void multiply(const Product& product, const float* x, int64_t inputs, float* y, int64_t outputs) {
    linear_team({product.weight, x, product.bias, y, pass.rows, inputs, outputs, 0, outputs},
                pass.threads);
  }

  // Input of a sublayer: norm(x) with pre-norm placement, else x.
  const float* pre_norm(const Norm& norm, const float* x) {
    if (layer.placement == AFTER) return x;
    const int64_t D = layer.width;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < pass.rows; n++) norm_row(norm, x + n * D, at.normed + n * D, D);
    return at.normed;
  }

  // y = x + sublayer output, with the norms after it. No barrier: the next operation either assigns
  // each row to the same thread (static schedule), or comes after a barrier or the end of the
  // layer.
  void add_residual(const Path& path, const float* x, float* y) {
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
    const Turns& turns = pass.turns;
    const int64_t at = turns.positions[n] * turns.stride;
    const float *cos = turns.cos + at, *sin = turns.sin + at;
    const int64_t half = turns.size / 2, step = turns.is_interleaved ? 2 : 1;
    const int64_t gap = turns.is_interleaved ? 1 : half;
    for (int64_t pair = 0; pair < half; pair++) {
      const int64_t i = pair * step, j = i + gap;
      const float a = head[i], b = head[j];
      head[i] = a * cos[i] + b * sin[i];
      head[j] = b * cos[j] + a * sin[j];
    }
  }

  void norm_and_rotate(float* head, const Norm& norm, int64_t n) {
    const Heads& own = layer.own;
    if (own.has_norms) norm_row(norm, head, head, own.head_size);
    if (pass.turns.cos != nullptr) rotate(head, n);
  }

  // Applies QK-norm and RoPE to queries and keys in place, and writes keys and values to their
  // pages.
  void store_row(int64_t n) {
    const Heads& own = layer.own;
    float* row = at.qkv + n * own.row();
    float *keys = row + own.keys_at(), *values = row + own.values_at();
    for (int64_t h = 0; h < own.heads; h++)
      norm_and_rotate(row + h * own.head_size, own.query_norm, n);
    for (int64_t h = 0; h < own.key_heads; h++)
      norm_and_rotate(keys + h * own.head_size, own.key_norm, n);
    std::copy(keys, values, where.k + pass.slots[n] * pass.own.k_stride.row);
    std::copy(values, row + own.row(), where.v + pass.slots[n] * pass.own.v_stride.row);
  }

  void attend(const Heads& heads, PagedCall call, const float* k, const float* v,
              const std::vector<QueryBlock>& blocks, int64_t q_row) {
    call.q = at.qkv, call.k = k, call.v = v, call.out = at.joined, call.lse = nullptr;
    call.q_token = q_row, call.q_head = heads.head_size;
    attend_blocks(call, blocks, pass.threads);
    multiply(heads.out, at.joined, heads.joined(), at.result, layer.width);
  }

  void self_attention(const std::vector<QueryBlock>& blocks, const float* x, float* y) {
    const Heads& own = layer.own;
    multiply(own.qkv, pre_norm(layer.own_path.norm, x), layer.width, at.qkv, own.row());
#pragma omp for schedule(static)
    for (int64_t n = 0; n < pass.rows; n++) store_row(n);
    attend(own, pass.own, where.k, where.v, blocks, own.row());
    add_residual(layer.own_path, x, y);
  }

  void cross_attention(const std::vector<QueryBlock>& blocks, float* y) {
    const Heads& cross = layer.cross;
    const float* input = pre_norm(layer.cross_path.norm, y);
    if (layer.placement == AFTER) {
#pragma omp barrier
    }
    multiply(cross.qkv, input, layer.width, at.qkv, cross.keys_at());
    if (cross.has_norms) {
      const int64_t C = cross.head_size;
#pragma omp for schedule(static)
      for (int64_t h = 0; h < pass.rows * cross.heads; h++)
        norm_row(cross.query_norm, at.qkv + h * C, at.qkv + h * C, C);
    }
    attend(cross, pass.cross, where.cross_k, where.cross_v, blocks, cross.keys_at());
    add_residual(layer.cross_path, y, y);
  }

  void feedforward(float* y) {
    const int64_t F = layer.inner, stride = layer.is_gated ? 2 * F : F;
    const float* input = pre_norm(layer.feedforward_path.norm, y);
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
    add_residual(layer.feedforward_path, y, y);
  }
};

void run_layer(const LayerAt& where, const LayerPass& pass, const float* x, float* y) {
  const Layer& layer = *where.layer;
  const LayerRun run{where, layer, pass, Buffers(layer, pass)};
  const std::vector<QueryBlock> own = split_queries(pass.own);
  const std::vector<QueryBlock> cross =
      layer.has_cross ? split_queries(pass.cross) : std::vector<QueryBlock>();
#pragma omp parallel num_threads(static_cast<int>(pass.threads)) if (pass.threads > 1)
  {
    LayerRun local = run;
    local.self_attention(own, x, y);
    if (layer.has_cross) local.cross_attention(cross, y);
    local.feedforward(y);
  }
}

}  // namespace
}  // namespace weft

EXPORT int64_t weft_layer_size() { return sizeof(weft::Layer); }
EXPORT int64_t weft_layer_pass_size() { return sizeof(weft::LayerPass); }
EXPORT int64_t weft_layer_at_size() { return sizeof(weft::LayerAt); }

EXPORT void weft_layers(const weft::LayerAt* layers, int64_t num,
                        const weft::LayerPass* const* passes, const float* x, float* y,
                        float* other) {
  if (num % 2 == 0) std::swap(y, other);
  for (int64_t i = 0; i < num; i++) {
    weft::run_layer(layers[i], *passes[layers[i].group], x, y);
    x = y;
    std::swap(y, other);
  }
}
