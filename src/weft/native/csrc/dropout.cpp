// y = x * keep / P(keep), where keep is made from a seed and the place of a number, and so again on
// the way back: no mask is ever stored.
//
// Places are taken 32 at a time: eight hashed words of 32 bits, whose bytes 0 to 3 decide eight
// numbers each. The same on every processor and for any number of threads.
#include <omp.h>

#include <algorithm>

#include "simd.h"

namespace weft {
namespace {

constexpr int LANES = 8, BLOCK = 4 * LANES;

typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef Floats LooseFloats __attribute__((aligned(4), may_alias));

// Every bit of the result depends on every bit of the input (Wellons' lowbias32).
inline Words mixed(Words x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

inline Words random_words(uint64_t block, uint64_t seed) {
  const Words lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  const Words place = lanes + static_cast<uint32_t>(block * LANES);
  const Words first = mixed(place + static_cast<uint32_t>(seed));
  return mixed(first + static_cast<uint32_t>(seed >> 32));
}

struct Rule {
  uint64_t seed;
  uint32_t dropped;  // bytes below this are dropped
  float scale;
};

inline void drop_block(const float* x, float* y, uint64_t block, Rule rule) {
  const Words words = random_words(block, rule.seed);
  UNROLL for (int part = 0; part < 4; part++) {
    const Words bytes = (words >> (8 * part)) & 255u;
    const Floats value = *reinterpret_cast<const LooseFloats*>(x + part * LANES);
    const Floats kept = bytes >= rule.dropped ? value * rule.scale : Floats{};
    *reinterpret_cast<LooseFloats*>(y + part * LANES) = kept;
  }
}

}  // namespace
}  // namespace weft

EXPORT void weft_dropout(const float* x, float* y, int64_t count, uint64_t seed, int64_t dropped,
                         float scale, int64_t threads) {
  using namespace weft;
  const Rule rule = {seed, static_cast<uint32_t>(dropped), scale};
  const int64_t blocks = count / BLOCK;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
  for (int64_t block = 0; block < blocks; block++)
    drop_block(x + block * BLOCK, y + block * BLOCK, block, rule);
  const int64_t done = blocks * BLOCK;
  if (done == count) return;
  float rest[BLOCK] = {};
  std::copy(x + done, x + count, rest);
  drop_block(rest, rest, blocks, rule);
  std::copy(rest, rest + count - done, y + done);
}
