// Attention over short sequences for training: out, weights and lse, and the backward pass.
//
// Every product has the form out[i] = sum over j of a[i, j] * b[j], with the rows of b read as
// vectors: for scores and their gradients, keys and values are transposed first. Inputs and outputs
// are strided [B, T, H, C] tensors, read and written without a copy. One thread computes a head, in
// a fixed order.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "abi.h"
#include "simd.h"

namespace weft {

namespace {

// Row of a batch entry and head.
inline float* at(const StridedRows& rows, int64_t b, int64_t h) {
  return rows.data + b * rows.batch + h * rows.head;
}

inline int64_t padded(int64_t size) { return (size + W - 1) / W * W; }

// a[i, j] with its two strides.
struct Coefficients {
  const float* data;
  int64_t i, j;
};

struct VectorRows {
  float* data;
  int64_t stride;
};

template <int R, int V>
inline void product_block(Coefficients a, VectorRows b, VectorRows out, int64_t terms, Vec scale) {
  Vec sums[R][V] = {};
  for (int64_t j = 0; j < terms; j++) {
    Vec row[V];
    UNROLL for (int v = 0; v < V; v++) row[v] = load(b.data + j * b.stride + v * W);
    UNROLL for (int r = 0; r < R; r++) {
      const Vec factor = splat(a.data[r * a.i + j * a.j]);
      UNROLL for (int v = 0; v < V; v++) sums[r][v] = fma(factor, row[v], sums[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
      store(out.data + r * out.stride + v * W, sums[r][v] * scale);
}

template <int V>
void product_columns(Coefficients a, VectorRows b, VectorRows out, int64_t rows, int64_t terms,
                     Vec scale) {
  constexpr int R = V == 4 ? 2 : 4;  // sums, a row and a factor stay in 16 registers
  int64_t i = 0;
  for (; i + R <= rows; i += R)
    product_block<R, V>({a.data + i * a.i, a.i, a.j}, b, {out.data + i * out.stride, out.stride},
                        terms, scale);
  for (; i < rows; i++)
    product_block<1, V>({a.data + i * a.i, a.i, a.j}, b, {out.data + i * out.stride, out.stride},
                        terms, scale);
}

// out[i] = scale * sum over j of a[i, j] * b[j]; rows of `size` numbers, a multiple of W.
void product(Coefficients a, VectorRows b, VectorRows out, int64_t rows, int64_t terms,
             int64_t size, float scale) {
  const Vec factor = splat(scale);
  for (int64_t begin = 0; begin < size;) {
    const VectorRows part = {b.data + begin, b.stride}, to = {out.data + begin, out.stride};
    const int64_t left = (size - begin) / W;
    if (left >= 4)
      product_columns<4>(a, part, to, rows, terms, factor);
    else if (left == 3)
      product_columns<3>(a, part, to, rows, terms, factor);
    else if (left == 2)
      product_columns<2>(a, part, to, rows, terms, factor);
    else
      product_columns<1>(a, part, to, rows, terms, factor);
    begin += std::min<int64_t>(left, 4) * W;
  }
}

// rows [n, size] -> transposed [size, padded(n)], padded with zeros.
void transpose_padded(const float* rows, int64_t stride, int64_t n, int64_t size,
                      float* transposed) {
  const int64_t width = padded(n);
  for (int64_t c = 0; c < size; c++) {
    float* to = transposed + c * width;
    for (int64_t s = 0; s < n; s++) to[s] = rows[s * stride + c];
    std::fill(to + n, to + width, 0.0f);
  }
}

// Softmax of the scores of one query, in place; returns lse. All masked: weights 0 and lse 0.
float softmax(float* scores, const float* added, int64_t keys) {
  const int64_t width = padded(keys);
  if (added != nullptr)
    for (int64_t s = 0; s < keys; s++) scores[s] += added[s];
  std::fill(scores + keys, scores + width, NEG_INF);
  Vec largest = load(scores);
  for (int64_t s = W; s < width; s += W) largest = vmax(largest, load(scores + s));
  const float top = reduce_max(largest);
  const Vec shift = splat(top == NEG_INF ? 0.0f : top);
  Vec sums = {};
  for (int64_t s = 0; s < width; s += W) {
    const Vec value = vexp(load(scores + s) - shift);
    store(scores + s, value);
    sums += value;
  }
  const float sum = reduce_add(sums);
  if (sum == 0) return 0.0f;  // all scores are -inf and all weights 0
  const Vec inverse = splat(1.0f / sum);
  for (int64_t s = 0; s < width; s += W) store(scores + s, load(scores + s) * inverse);
  return top + std::log(sum);
}

void forward_head(const ShortAttentionCall& call, int64_t b, int64_t h, float* transposed) {
  const int64_t T = call.queries, S = call.keys, width = padded(S), index = b * call.heads + h;
  float* weights = call.weights + index * T * width;
  transpose_padded(at(call.k, b, h), call.k.token, S, call.head_size, transposed);
  product({at(call.q, b, h), call.q.token, 1}, {transposed, width}, {weights, width}, T,
          call.head_size, width, call.scale);
  for (int64_t t = 0; t < T; t++) {
    const float* added = nullptr;
    if (call.added.data != nullptr) added = at(call.added, b, h) + t * call.added.token;
    call.lse[index * T + t] = softmax(weights + t * width, added, S);
  }
  product({weights, width, 1}, {at(call.v, b, h), call.v.token},
          {at(call.out, b, h), call.out.token}, T, S, call.value_size, 1.0f);
}

// Gradient of the softmax, in place: dp -> ds = p (dp - sum(dp p) + dlse).
void softmax_backward(float* dp, const float* weights, float dlse, int64_t width) {
  Vec sums = {};
  for (int64_t s = 0; s < width; s += W) sums = fma(load(dp + s), load(weights + s), sums);
  const Vec row_sum = splat(reduce_add(sums) - dlse);
  for (int64_t s = 0; s < width; s += W)
    store(dp + s, load(weights + s) * (load(dp + s) - row_sum));
}

void backward_head(const ShortAttentionCall& call, int64_t b, int64_t h, float* transposed,
                   float* dscores) {
  const int64_t T = call.queries, S = call.keys, width = padded(S), index = b * call.heads + h;
  const float* weights = call.weights + index * T * width;
  const VectorRows dout = {at(call.dout, b, h), call.dout.token};
  product({weights, 1, width}, dout, {at(call.dv, b, h), call.dv.token}, S, T, call.value_size,
          1.0f);
  transpose_padded(at(call.v, b, h), call.v.token, S, call.value_size, transposed);
  product({dout.data, dout.stride, 1}, {transposed, width}, {dscores, width}, T, call.value_size,
          width, 1.0f);
  for (int64_t t = 0; t < T; t++) {
    const float dlse = call.dlse == nullptr ? 0.0f : call.dlse[index * T + t];
    softmax_backward(dscores + t * width, weights + t * width, dlse, width);
  }
  product({dscores, width, 1}, {at(call.k, b, h), call.k.token}, {at(call.dq, b, h), call.dq.token},
          T, S, call.head_size, call.scale);
  product({dscores, 1, width}, {at(call.q, b, h), call.q.token}, {at(call.dk, b, h), call.dk.token},
          S, T, call.head_size, call.scale);
}

}  // namespace
}  // namespace weft

int64_t weft_short_attention(const WeftShortAttention* call, int64_t is_backward) {
  using namespace weft;
  const int64_t width = padded(call->keys), num_heads = call->batch * call->heads;
  const int64_t max_size = std::max(call->head_size, call->value_size);
  TeamError error;
#pragma omp parallel num_threads(static_cast<int>(call->threads)) if (call->threads > 1)
  {
    std::vector<float> transposed, dscores;
    bool is_ready = false;
    error.run([&] {
      transposed.resize(max_size * width);
      if (is_backward) dscores.resize(call->queries * width);
      is_ready = true;
    });
#pragma omp for schedule(static)
    for (int64_t head = 0; head < num_heads; head++) {
      if (!is_ready) continue;
      const int64_t b = head / call->heads, h = head % call->heads;
      if (is_backward)
        backward_head(*call, b, h, transposed.data(), dscores.data());
      else
        forward_head(*call, b, h, transposed.data());
    }
  }
  return error.code();
}
