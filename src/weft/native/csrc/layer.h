// Arguments of the compiled layers: weights, positions and pages.
#pragma once

#include "layer_ops.h"
#include "pages.h"

namespace weft {

// Mirrors ProductStruct of structs.py; the others mirror structures there as well.
struct Product {
  const Packed* weight;
  const float* bias;
};

struct Path {
  Norm norm, norm_out;
};

struct Heads {
  Product qkv, out;
  Norm query_norm, key_norm;
  int64_t has_norms, heads, key_heads, head_size, value_size;

  int64_t keys_at() const { return heads * head_size; }
  int64_t values_at() const { return keys_at() + key_heads * head_size; }
  int64_t row() const { return values_at() + key_heads * value_size; }
  int64_t joined() const { return heads * value_size; }
};

struct Layer {
  int64_t width, placement, has_cross;
  Path own_path, cross_path, feedforward_path;
  Heads own, cross;
  Product up, down;
  int64_t inner, is_gated, activation;
};

// RoPE: cosine and signed sine of each position, in rows that are `stride` apart, and the positions
// of the tokens. The first `size` elements of a head are rotated.
struct Turns {
  const float *cos, *sin;
  const int64_t* positions;
  int64_t stride, size, is_interleaved;
};

struct LayerPass {
  float* scratch;
  const int64_t* slots;  // row of the pages into which the key and value of each token are written
  int64_t rows, threads;
  Turns turns;
  PagedCall own, cross;  // q, k, v, out and lse are set for each layer
};

// A layer and its KV cache.
struct LayerAt {
  const Layer* layer;
  float *k, *v;
  const float *cross_k, *cross_v;
  int64_t group;  // index of its LayerPass
};

}  // namespace weft

// Runs one layer after another. Their outputs alternate between y and `other`; the last is in y.
EXPORT void weft_layers(const weft::LayerAt* layers, int64_t num,
                        const weft::LayerPass* const* passes, const float* x, float* y,
                        float* other);
