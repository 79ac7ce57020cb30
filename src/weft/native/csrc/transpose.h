// Transposes a W x W block in registers: row i at rows[i] + at -> columns[j][i].
#pragma once

#include "simd.h"

namespace weft {

#if defined(__AVX512F__)
// Four rounds of shuffles: elements, pairs of elements, and twice 128-bit quarters.
inline void transpose(const float* const* rows, int64_t at, Vec (&columns)[W]) {
  Vec a[W], b[W];
  UNROLL for (int i = 0; i < W; i++) a[i] = load(rows[i] + at);
  UNROLL for (int i = 0; i < W; i += 2) {
    const Vec x = a[i], y = a[i + 1];
    b[i] = __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    b[i + 1] =
        __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  UNROLL for (int i = 0; i < W; i += 4) UNROLL for (int j = 0; j < 2; j++) {
    const Vec x = b[i + j], y = b[i + j + 2];
    a[i + 2 * j] =
        __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    a[i + 2 * j + 1] =
        __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  const auto even = [](Vec x, Vec y) {
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  };
  const auto odd = [](Vec x, Vec y) {
    return __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30,
                                   31);
  };
  UNROLL for (int i = 0; i < W; i += 8) UNROLL for (int j = 0; j < 4; j++) {
    b[i + j] = even(a[i + j], a[i + j + 4]);
    b[i + j + 4] = odd(a[i + j], a[i + j + 4]);
  }
  UNROLL for (int j = 0; j < 8; j++) {
    columns[j] = even(b[j], b[j + 8]);
    columns[j + 8] = odd(b[j], b[j + 8]);
  }
}
#elif defined(__AVX2__) && defined(__FMA__)
inline void transpose(const float* const* rows, int64_t at, Vec (&columns)[W]) {
  Vec a[W], b[W];
  UNROLL for (int i = 0; i < 4; i++) {
    const Vec low = load(rows[i] + at), high = load(rows[i + 4] + at);
    a[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
    a[i + 4] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  UNROLL for (int i = 0; i < W; i += 4) UNROLL for (int j = 0; j < 2; j++) {
    const Vec x = a[i + j], y = a[i + j + 2];
    b[i + j] = __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13);
    b[i + j + 2] = __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
  }
  UNROLL for (int i = 0; i < W; i += 2) {
    columns[i] = __builtin_shufflevector(b[i], b[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    columns[i + 1] = __builtin_shufflevector(b[i], b[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
}
#else
inline void transpose(const float* const* rows, int64_t at, Vec (&columns)[W]) {
  for (int i = 0; i < W; i++)
    for (int j = 0; j < W; j++) columns[j][i] = rows[i][at + j];
}
#endif

}  // namespace weft
