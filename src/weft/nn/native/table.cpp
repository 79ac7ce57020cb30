// Rows of a packed weight, by number: W_OI[ids]. The floats are those that the product multiplies by.
#include <cmath>

#include "panels.h"

namespace weft {
namespace {

inline float half_at(const uint16_t* from) {
  _Float16 half;
  std::memcpy(&half, from, sizeof half);
  return static_cast<float>(half);
}

template <int BITS>
void few_bits_row(const Packed& weight, int64_t panel, int64_t lane, float* to) {
  constexpr int64_t PER_WORD = Fields<BITS>::PER_WORD;
  const uint32_t* words = static_cast<const uint32_t*>(weight.data);
  words += panel * (weight.inputs / PER_WORD) * WIDTH + lane;
  const int64_t groups = panel * (weight.inputs / GROUP);
  for (int64_t i = 0; i < weight.inputs; i++) {
    const int64_t at = (groups + i / GROUP) * WIDTH + lane;
    const float scale = half_at(weight.scales + at);
    const float minimum = BITS == 4 ? half_at(weight.minima + at) : scale * -128.0f;
    const uint32_t word = words[i / PER_WORD * WIDTH] >> (BITS * (i % PER_WORD));
    to[i] = std::fma(static_cast<float>(word & Fields<BITS>::MASK), scale, minimum);
  }
}

}  // namespace
}  // namespace weft

EXPORT void weft_rows(const weft::Packed* weight, const int64_t* ids, int64_t num, float* y) {
  using namespace weft;
  for (int64_t n = 0; n < num; n++, y += weight->inputs) {
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
