// Embedding lookup: rows W_OI[ids] of a packed matrix, dequantized exactly as in a product.
#include <cmath>

#include "panels.h"

namespace weft {
namespace {

// One half float of a panel's row, converted as a vector: scalar conversion is not portable.
inline float half_at(const uint16_t* row, int64_t lane) {
  return load_half(row + lane / W * W)[lane % W];
}

template <int BITS>
void quantized_row(const PackedMatrix& weight, int64_t panel, int64_t lane, float* to) {
  constexpr int64_t PER_WORD = BitFields<BITS>::PER_WORD;
  const int64_t groups = weight.inputs / GROUP, words = weight.inputs / PER_WORD;
  const uint32_t* word =
      static_cast<const uint32_t*>(weight.data) + panel * words * PANEL_WIDTH + lane;
  for (int64_t group = 0; group < groups; group++) {
    const int64_t at = (panel * groups + group) * PANEL_WIDTH;
    const float scale = half_at(weight.scales + at, lane);
    const float minimum = BITS == 4 ? half_at(weight.minima + at, lane) : scale * -128.0f;
    for (int64_t i = 0; i < GROUP; i++, to++) {
      const uint32_t number = word[i / PER_WORD * PANEL_WIDTH] >> (BITS * (i % PER_WORD));
      *to = std::fma(static_cast<float>(number & BitFields<BITS>::MASK), scale, minimum);
    }
    word += GROUP / PER_WORD * PANEL_WIDTH;
  }
}

}  // namespace
}  // namespace weft

int64_t weft_embedding_rows(const WeftPackedMatrix* matrix, const int64_t* ids, int64_t num,
                            float* y) {
  using namespace weft;
  for (int64_t n = 0; n < num; n++, y += matrix->inputs) {
    if (ids[n] < 0 || ids[n] >= matrix->outputs) return n;
    const int64_t panel = ids[n] / PANEL_WIDTH, lane = ids[n] % PANEL_WIDTH;
    if (matrix->bits == 4) {
      quantized_row<4>(*matrix, panel, lane, y);
    } else if (matrix->bits == 8) {
      quantized_row<8>(*matrix, panel, lane, y);
    } else {
      for (int64_t i = 0; i < matrix->inputs; i++) y[i] = panel_floats(*matrix, panel, i)[lane];
    }
  }
  return num;
}
