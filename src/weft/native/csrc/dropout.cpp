// Dropout: y = x * keep / P(keep). `keep` is a hash of a seed and the element's index, so that the
// backward pass computes it again and no mask is stored.
//
// 32 elements at a time: eight hashed 32-bit words, each byte of which decides eight elements.
// Equal on every processor and for any number of threads.
#include <omp.h>

#include <algorithm>

#include "abi.h"
#include "simd.h"

namespace weft {
namespace {

constexpr int LANES = 8, ELEMENT_BLOCK = 4 * LANES;

typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef Floats UnalignedFloats __attribute__((aligned(4), may_alias));

// Wellons' lowbias32: every bit of the result depends on every bit of the input.
inline Words hash(Words x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

inline Words random_words(uint64_t block, uint64_t seed) {
  const Words lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  const Words place = lanes + static_cast<uint32_t>(block * LANES);
  const Words first = hash(place + static_cast<uint32_t>(seed));
  return hash(first + static_cast<uint32_t>(seed >> 32));
}

struct DropoutParams {
  uint64_t seed;
  uint32_t threshold;  // elements whose byte is below are dropped
  float scale;
};

inline void drop_block(const float* x, float* y, uint64_t block, DropoutParams params) {
  const Words words = random_words(block, params.seed);
  UNROLL for (int part = 0; part < 4; part++) {
    const Words bytes = (words >> (8 * part)) & 255u;
    const Floats value = *reinterpret_cast<const UnalignedFloats*>(x + part * LANES);
    const Floats kept = bytes >= params.threshold ? value * params.scale : Floats{};
    *reinterpret_cast<UnalignedFloats*>(y + part * LANES) = kept;
  }
}

}  // namespace
}  // namespace weft

int64_t weft_dropout(const float* x, float* y, int64_t count, int64_t seed, int64_t threshold,
                     float scale, int64_t threads) {
  using namespace weft;
  const DropoutParams params = {static_cast<uint64_t>(seed), static_cast<uint32_t>(threshold),
                                scale};
  const int64_t blocks = count / ELEMENT_BLOCK;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t block = 0; block < blocks; block++)
    drop_block(x + block * ELEMENT_BLOCK, y + block * ELEMENT_BLOCK, block, params);
  const int64_t done = blocks * ELEMENT_BLOCK;
  if (done == count) return 0;
  float tail[ELEMENT_BLOCK] = {};
  std::copy(x + done, x + count, tail);
  drop_block(tail, tail, blocks, params);
  std::copy(tail, tail + count - done, y + done);
  return 0;
}
