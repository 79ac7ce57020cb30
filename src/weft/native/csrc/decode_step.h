// One decode step of a batch: one token of each sequence in, its top-k next tokens out.
#pragma once

#include "layer.h"

namespace weft {

// x = norm(weight[id] * scale + added[position]). Mirrors WordsStruct of structs.py, as the others
// mirror theirs.
struct Words {
  const Packed* weight;
  const float* added;  // position embeddings; null: none
  Norm norm;
  int64_t has_norm, width;
  float scale;
};

// A decoder: embedding, layers, final norm and LM head.
struct Next {
  Words words;
  const LayerAt* layers;
  int64_t num_layers;
  Norm norm;  // after the last layer
  int64_t has_norm;
  Product head;
  float head_scale;
};

// A batch and its results: the top `count` of each sequence, best first, and the log-sum-exp.
struct NextCall {
  LayerPass* const* passes;
  int64_t num_passes;  // one for each group of layers
  const int64_t* ids;
  const int64_t* banned;
  int64_t num_banned, count;
  float* values;
  int64_t* found;
  double* sums;
  int64_t threads;
};

// Returns the number of ids before the first one that is out of range; if it is not all of them,
// nothing else was computed.
int64_t decode_step(const Next& next, const NextCall& call);

}  // namespace weft
