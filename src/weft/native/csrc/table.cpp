// Rows of a packed weight, by number: W_OI[ids]. The floats are those that the product multiplies by.
#include <cmath>

#include "panels.h"

namespace weft {
namespace {

// One half float of a panel's row, by way of its vector: not every compiler knows a half by itself.
inline float half_at(const uint16_t* row, int64_t lane) {
  return load_half(row + lane / W * W)[lane % W];
}

template <int BITS>
void few_bits_row(const Packed& weight, int64_t panel, int64_t lane, float* to) {
  constexpr int64_t PER_WORD = Fields<BITS>::PER_WORD;
  const int64_t groups = weight.inputs / GROUP, words = weight.inputs / PER_WORD;
  const uint32_t* word = static_cast<const uint32_t*>(weight.data) + panel * words * WIDTH + lane;
  for (int64_t group = 0; group < groups; group++) {
    const int64_t at = (panel * groups + group) * WIDTH;
    const float scale = half_at(weight.scales + at, lane);
    const float minimum = BITS == 4 ? half_at(weight.minima + at, lane) : scale * -128.0f;
    for (int64_t i = 0; i < GROUP; i++, to++) {
      const uint32_t number = word[i / PER_WORD * WIDTH] >> (BITS * (i % PER_WORD));
      *to = std::fma(static_cast<float>(number & Fields<BITS>::MASK), scale, minimum);
    }
    word += GROUP / PER_WORD * WIDTH;
  }
}

}  // namespace
}  // namespace weft

// Stops at an id that has no row, and says how many came before it: the last panel has room for more
// rows than there are.
EXPORT void weft_rows(const weft::Packed* weight, const int64_t* ids, int64_t num, float* y,
                      int64_t* done) {
  using namespace weft;
  for (*done = 0; *done < num; ++*done, y += weight->inputs) {
    const int64_t n = *done;
    if (ids[n] < 0 || ids[n] >= weight->outputs) return;
    const int64_t panel = ids[n] / WIDTH, lane = ids[n] % WIDTH;
    if (weight->bits == 4) {
      few_bits_row<4>(*weight, panel, lane, y);
    } else if (weight->bits == 8) {
      few_bits_row<8>(*weight, panel, lane, y);
    } else {
      for (int64_t i = 0; i < weight->inputs; i++) y[i] = floats(*weight, panel, i)[lane];
    }
  }
}
