// What the compiled layers of a pass are given: weights, positions and pages.
#pragma once

#include "pages.h"
#include "rows.h"

namespace weft {

// A product; mirrors ProductStruct of structs.py, as the others do theirs.
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

// Cosine and signed sine of each position, `stride` apart, and the positions of the pass's tokens;
// `size` numbers of a head turn.
struct Turns {
  const float *cos, *sin;
  const int64_t* positions;
  int64_t stride, size, is_interleaved;
};

struct LayerPass {
  float* scratch;
  const int64_t* slots;  // row of the pages in which each token goes
  int64_t rows, threads;
  Turns turns;
  PagedCall own, cross;  // without q, k, v, out and lse
};

// A layer and where its rows lie.
struct LayerAt {
  const Layer* layer;
  float *k, *v;
  const float *cross_k, *cross_v;
  int64_t group;  // of layers that share a LayerPass
};

}  // namespace weft

// Layer after layer. Results go to y and to `other` in turn, so that the last one's is in y.
EXPORT void weft_layers(const weft::LayerAt* layers, int64_t num,
                        const weft::LayerPass* const* passes, const float* x, float* y,
                        float* other);
