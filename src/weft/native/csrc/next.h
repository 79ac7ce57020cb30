// One token of each of some lanes in, the best tokens behind it out.
#pragma once

#include "layer.h"

namespace weft {

// x = norm(words[id] * scale + added[position]). Mirrors WordsStruct of structs.py, as the others do
// theirs.
struct Words {
  const Packed* weight;
  const float* added;  // null: nothing is added
  Norm norm;
  int64_t has_norm, width;
  float scale;
};

// A decoder.
struct Next {
  Words words;
  const LayerAt* layers;
  int64_t num_layers;
  Norm norm;  // behind the last layer
  int64_t has_norm;
  Product head;
  float head_scale;
};

// What is asked of it, and where the answers go: `count` of each lane, best first, and the
// logarithm of the sum of all exps.
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

// How many ids had a row in the word table; where it is not all, nothing else was done.
int64_t find_next(const Next& next, const NextCall& call);

}  // namespace weft
