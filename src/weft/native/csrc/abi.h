// The C++ side of weft_native.h: names in the namespace, and exceptions -> error numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <new>

#include "weft_native.h"

namespace weft {

using PackedMatrix = WeftPackedMatrix;
using NormWeights = WeftNorm;
using LinearWeights = WeftLinear;
using PageStrides = WeftPageStrides;
using PagedAttentionCall = WeftPagedAttention;
using StridedRows = WeftStridedRows;
using ShortAttentionCall = WeftShortAttention;
using ResidualNorms = WeftResidualNorms;
using AttentionWeights = WeftAttention;
using LayerWeights = WeftLayer;
using RotaryTable = WeftRotary;
using LayerPass = WeftLayerPass;
using PlacedLayer = WeftPlacedLayer;
using EmbeddingWeights = WeftEmbedding;
using DecoderWeights = WeftDecoder;
using DecodeStep = WeftDecodeStep;
using GreedyCall = WeftGreedy;

constexpr int64_t OUT_OF_MEMORY = -1, OTHER_ERROR = -2;

// The result of compute(), or the error number of its exception: none may leave the library.
template <class Compute>
int64_t guarded(Compute compute) {
  try {
    return compute();
  } catch (const std::bad_alloc&) {
    return OUT_OF_MEMORY;
  } catch (...) {
    return OTHER_ERROR;
  }
}

// For calls of exported functions inside the library.
inline void throw_error(int64_t code) {
  if (code == OUT_OF_MEMORY) throw std::bad_alloc();
  if (code < 0) throw std::exception();
}

// The error of a thread team. An exception may not leave a parallel region or an iteration of a
// shared loop either: iterations that allocate run inside `run`.
class TeamError {
 public:
  template <class Compute>
  void run(Compute compute) {
    const int64_t code = guarded([&] {
      compute();
      return int64_t{0};
    });
    if (code != 0) error = code;
  }
  int64_t code() const { return error; }

 private:
  std::atomic<int64_t> error{0};
};

}  // namespace weft
