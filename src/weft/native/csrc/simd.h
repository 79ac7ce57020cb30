// SIMD vectors of W floats, and exp and tanh on them. All kernels are written with these.
//
// GCC's vector extensions provide +, -, *, comparison and selection for AVX-512, AVX2, SSE2 and
// NEON; fma, max and half floats use intrinsics. The sources are compiled with -ffp-contract=off: a
// multiplication and an addition are fused where `fma` is written, and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Precedes loops over arrays of vectors: the compiler keeps an array in registers only if all loops
// over it are unrolled.
#define UNROLL _Pragma("GCC unroll 16")

namespace weft {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

constexpr float NEG_INF = -__builtin_inff();  // score of a masked key, logit of padding

typedef float Vec __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
typedef uint32_t Bits __attribute__((vector_size(4 * W)));  // wraps around; signed overflow is UB
typedef Vec UnalignedVec __attribute__((aligned(4), may_alias));
typedef Ints UnalignedInts __attribute__((aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const UnalignedVec*>(from); }
inline Ints load_ints(const int32_t* from) { return *reinterpret_cast<const UnalignedInts*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<UnalignedVec*>(to) = value; }
inline Vec splat(float value) { return value - Vec{}; }  // subtracting 0 preserves all bits
inline Vec to_float(Ints value) { return __builtin_convertvector(value, Vec); }

// a * b + c with one rounding; with two roundings if the processor has no such instruction.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// Forces `value` into a register. Otherwise the compiler loads it from memory again for each
// product, and the loads limit the throughput.
inline Vec in_register(Vec value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#endif
  return value;
}

// Elementwise maximum; b if either is NaN.
inline Vec vmax(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// Loads W half floats and converts them to float32, which is exact.
inline Vec load_half(const uint16_t* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  _Float16 halves[W];
  std::memcpy(halves, from, sizeof halves);
  Vec wide;
  for (int lane = 0; lane < W; lane++) wide[lane] = static_cast<float>(halves[lane]);
  return wide;
#endif
}

// Sum of the lanes, always in this order (W = 8): 0+4 1+5 2+6 3+7, then 0+2 1+3, then 0+1.
inline float reduce_add(Vec value) {
  for (int half = W / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; lane++) value[lane] += value[lane + half];
  return value[0];
}

inline float reduce_max(Vec value) {
  typedef float Quad __attribute__((vector_size(16)));
  Quad best;
  std::memcpy(&best, &value, sizeof best);
  for (int lane = 4; lane < W; lane += 4) {
    Quad next;
    std::memcpy(&next, reinterpret_cast<const float*>(&value) + lane, sizeof next);
    best = best > next ? best : next;
  }
  const float low = best[0] > best[1] ? best[0] : best[1];
  const float high = best[2] > best[3] ? best[2] : best[3];
  return low > high ? low : high;
}

constexpr float MIN_EXP_INPUT = -86.0f;

// e^x with a relative error of about 1e-7; 0 below -86 and for -inf, exactly 1 at 0, NaN for NaN.
// Valid for x <= 88.
inline Vec vexp(Vec x) {
  // adding 1.5 * 2^23 rounds to an integer, which is then in the lowest mantissa bits
  const Vec magic = splat(12582912.0f);
  const Vec shifted = fma(x, splat(1.44269504f), magic);
  const Vec power = shifted - magic;
  Vec rest = fma(power, splat(-0.693359375f), x);
  rest = fma(power, splat(2.12194440e-4f), rest);
  Vec sum = splat(1.9875691500e-4f);
  sum = fma(sum, rest, splat(1.3981999507e-3f));
  sum = fma(sum, rest, splat(8.3334519073e-3f));
  sum = fma(sum, rest, splat(4.1665795894e-2f));
  sum = fma(sum, rest, splat(1.6666665459e-1f));
  sum = fma(sum, rest, splat(5.0000001201e-1f));
  sum = fma(sum, rest * rest, rest) + splat(1.0f);
  // adding to the exponent field multiplies by 2^power, but turns a NaN into an arbitrary number
  const Bits scaled = reinterpret_cast<Bits>(sum) + (reinterpret_cast<Bits>(shifted) << 23);
  // vmax(0, x) is 0 for x below the range and NaN for NaN
  return x >= splat(MIN_EXP_INPUT) ? reinterpret_cast<Vec>(scaled) : vmax(Vec{}, x);
}

// tanh(x) with a relative error of about 2e-7: a polynomial near 0, e^2x elsewhere (Cephes).
inline Vec vtanh(Vec x) {
  const Vec size = x < Vec{} ? -x : x;
  const Vec bounded = size > splat(15.0f) ? splat(15.0f) : size;  // NaN stays NaN
  const Vec far = splat(1.0f) - splat(2.0f) / (vexp(bounded + bounded) + splat(1.0f));
  const Vec square = x * x;
  Vec sum = splat(-5.70498872745e-3f);
  sum = fma(sum, square, splat(2.06390887954e-2f));
  sum = fma(sum, square, splat(-5.37397155531e-2f));
  sum = fma(sum, square, splat(1.33314422036e-1f));
  sum = fma(sum, square, splat(-3.33332819422e-1f));
  const Vec near = fma(sum * square, x, x);
  return size < splat(0.625f) ? near : (x < Vec{} ? -far : far);
}

}  // namespace weft
