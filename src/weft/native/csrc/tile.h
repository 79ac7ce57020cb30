// Attention of query rows over one tile of TILE keys: scores, online softmax, weighted values.
//
// The order of every summation is fixed, whatever else is in the call: a score is one chain over
// the head dimension, the online softmax goes from tile to tile (Milakov 2018), an output is one
// chain over the keys of a tile. A masked key has weight exactly 0 and does not change the maximum,
// so vectors of keys outside begin..end can be skipped without changing a bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "transpose.h"

namespace weft {

constexpr int TILE = 32;
constexpr int TILE_VECTORS = TILE / W;       // vectors in a row of scores
constexpr int QUERY_ROWS = W == 16 ? 6 : 3;  // query rows whose sums fit into registers
constexpr int64_t KEY_CHUNK = 128;           // elements of a head whose keys stay in the L1 cache

// The keys and values of a tile, by pointers to their rows. Keys outside begin..end are zero.
struct Tile {
  float* keys;  // transposed, [C][TILE]; null: score_untransposed reads `rows`
  const float *rows[TILE], *values[TILE];
  int begin, end;

  int first_vector() const { return begin / W; }
  int num_vectors() const { return (end + W - 1) / W - first_vector(); }
};

// State of the online softmax of a query row (one token and head).
struct QueryRow {
  const float* q;
  float* sum;  // [U], weighted sum of values
  float* out;
  float* lse;
  const float* bias;  // by distance; null: none
  const float* mask;  // by slot; null: none
  int64_t sequence, slot;
  int64_t first_key, last_key;  // slots it attends to; last < first: none
  float max_score;
  float correction;  // factor for the previous sums: exp(old maximum - new maximum)
  Vec sum_weights;   // lane l: sum over keys l, l + W, ...
};

// scores[row][key] (+)= q[row] . key over elements begin..end of the head, for N vectors of keys.
template <int R, int N>
void score(const QueryRow* const* rows, const Tile& tile, int64_t begin, int64_t end,
           float* scores) {
  Vec sums[R][N];
  const float* q[R];
  const int at = tile.first_vector() * W;
  scores += at;
  UNROLL for (int r = 0; r < R; r++) {
    q[r] = rows[r]->q;
    UNROLL for (int v = 0; v < N; v++) sums[r][v] =
        begin == 0 ? Vec{} : load(scores + r * TILE + v * W);
  }
  const float* keys = tile.keys + at;
  for (int64_t c = begin; c < end; c++) {
    Vec factors[R];
    UNROLL for (int r = 0; r < R; r++) factors[r] = splat(q[r][c]);
    UNROLL for (int v = 0; v < N; v++) {
      const Vec key = in_register(load(keys + c * TILE + v * W));
      UNROLL for (int r = 0; r < R; r++) sums[r][v] = fma(factors[r], key, sums[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < N; v++)
      store(scores + r * TILE + v * W, sums[r][v]);
}

// The same for few rows and one vector of keys: keys[0..W) are transposed in registers.
template <int R>
void score_untransposed(const QueryRow* const* rows, const float* const* keys, int64_t head_size,
                        float* scores) {
  Vec sums[R] = {};
  const float* q[R];
  UNROLL for (int r = 0; r < R; r++) q[r] = rows[r]->q;
  for (int64_t c = 0; c < head_size; c += W) {
    Vec columns[W];
    transpose(keys, c, columns);
    UNROLL for (int i = 0; i < W; i++) UNROLL for (int r = 0; r < R; r++) sums[r] =
        fma(splat(q[r][c + i]), columns[i], sums[r]);
  }
  UNROLL for (int r = 0; r < R; r++) store(scores + r * TILE, sums[r]);
}

// sum[row] = correction[row] sum[row] + weights[row] . values, for V vectors from element `at` on.
template <int R, int V>
void accumulate_pv(const QueryRow* const* rows, const Tile& tile, const float* weights,
                   int64_t at) {
  Vec sums[R][V];
  float* sum[R];
  UNROLL for (int r = 0; r < R; r++) {
    sum[r] = rows[r]->sum + at;
    const Vec correction = splat(rows[r]->correction);
    UNROLL for (int v = 0; v < V; v++) sums[r][v] = load(sum[r] + v * W) * correction;
  }
  for (int key = tile.begin; key < tile.end; key++) {
    Vec factors[R];
    UNROLL for (int r = 0; r < R; r++) factors[r] = splat(weights[r * TILE + key]);
    const float* values = tile.values[key] + at;
    UNROLL for (int v = 0; v < V; v++) {
      const Vec value = in_register(load(values + v * W));
      UNROLL for (int r = 0; r < R; r++) sums[r][v] = fma(factors[r], value, sums[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
      store(sum[r] + v * W, sums[r][v]);
}

struct ScoreParams {
  float scale, softcap;              // softcap: 0 for none
  int64_t distances, zero_distance;  // entries of a bias row, and the entry of distance 0
};

inline Ints lane_ids() {
  Ints lanes;
  for (int lane = 0; lane < W; lane++) lanes[lane] = lane;
  return lanes;
}

// Biases of one row for the W keys from slot `key` on.
inline Vec bias_at(const QueryRow& row, const ScoreParams& params, int64_t key) {
  const int64_t nearest = row.slot - key - (W - 1) + params.zero_distance,
                last_key = params.distances - 1;
  if (nearest >= last_key) return splat(row.bias[last_key]);
  if (nearest >= 0 && nearest + W - 1 <= last_key)
    return __builtin_shuffle(load(row.bias + nearest), W - 1 - lane_ids());
  Vec bias;
  for (int lane = 0; lane < W; lane++)
    bias[lane] = row.bias[std::clamp<int64_t>(nearest + (W - 1) - lane, 0, last_key)];
  return bias;
}

// Scale, softcap, bias and mask for W raw scores from slot `key` on.
inline Vec masked_score(Vec score, const QueryRow& row, const ScoreParams& params, int64_t key) {
  score = score * params.scale;
  if (params.softcap != 0) score = vtanh(score / params.softcap) * params.softcap;
  if (row.bias != nullptr) score = score + bias_at(row, params, key);
  if (row.mask != nullptr) score = score + load(row.mask + key);
  if (key >= row.first_key && key + W - 1 <= row.last_key) return score;
  const int64_t low = std::clamp<int64_t>(row.first_key - key, 0, W);
  const int64_t high = std::clamp<int64_t>(row.last_key - key, -1, W);
  const Ints lane = lane_ids();
  const Ints visible = (lane >= static_cast<int32_t>(low)) & (lane <= static_cast<int32_t>(high));
  return visible ? score : splat(NEG_INF);
}

// One step of the online softmax of a row: the scores of N vectors of keys, from slot `key` on,
// become weights relative to the largest score so far.
template <int N>
void online_softmax(QueryRow& row, const ScoreParams& params, int64_t key, float* scores) {
  Vec score[N], largest = splat(NEG_INF);
  UNROLL for (int v = 0; v < N; v++) {
    score[v] = masked_score(load(scores + v * W), row, params, key + v * W);
    largest = vmax(largest, score[v]);
  }
  const float max_score = std::max(row.max_score, reduce_max(largest));
  if (max_score ==
      NEG_INF) {  // every score is -inf, whose weight is 0, or NaN, whose weight is NaN
    row.correction = 1;
    UNROLL for (int v = 0; v < N; v++) {
      const Vec weights = vexp(score[v]);
      store(scores + v * W, weights);
      row.sum_weights = row.sum_weights + weights;
    }
    return;
  }
  const Vec correction = row.max_score == NEG_INF ? Vec{} : vexp(splat(row.max_score - max_score));
  row.correction = correction[0];
  row.max_score = max_score;
  Vec sum_weights = row.sum_weights * correction;
  UNROLL for (int v = 0; v < N; v++) {
    const Vec weights = vexp(score[v] - max_score);
    store(scores + v * W, weights);
    sum_weights = sum_weights + weights;
  }
  row.sum_weights = sum_weights;
}

template <int R, int V = 4>
void accumulate_pv_all(const QueryRow* const* rows, const Tile& tile, const float* weights,
                       int64_t at, int64_t size) {
  for (; at + V * W <= size; at += V * W) accumulate_pv<R, V>(rows, tile, weights, at);
  if constexpr (V > 1) accumulate_pv_all<R, V / 2>(rows, tile, weights, at, size);
}

// Calls use(R, i) so that blocks of R <= QUERY_ROWS rows from i on cover 0..num; R is a constant.
template <int R = QUERY_ROWS, class Use>
inline void in_row_blocks(int64_t from, int64_t num, Use use) {
  for (; from + R <= num; from += R) use(std::integral_constant<int, R>(), from);
  if constexpr (R > 1) in_row_blocks<R - 1>(from, num, use);
}

// Scores and softmax weights of all rows for N vectors of keys.
template <int N>
void softmax_tile(QueryRow** rows, int64_t num, const Tile& tile, const ScoreParams& params,
                  int64_t start, int64_t head_size, float* scores) {
  const int at = tile.first_vector() * W;
  for (int64_t c = 0; c < head_size && tile.keys != nullptr; c += KEY_CHUNK)
    in_row_blocks(0, num, [&](auto R, int64_t i) {
      score<R, N>(rows + i, tile, c, std::min(c + KEY_CHUNK, head_size), scores + i * TILE);
    });
  for (int v = 0; v < N && tile.keys == nullptr; v++)
    in_row_blocks(0, num, [&](auto R, int64_t i) {
      score_untransposed<R>(rows + i, tile.rows + at + v * W, head_size,
                            scores + i * TILE + at + v * W);
    });
  for (int64_t i = 0; i < num; i++)
    online_softmax<N>(*rows[i], params, start + at, scores + i * TILE + at);
}

// The same, with N chosen by the number of keys in the tile.
template <int N = TILE_VECTORS, class... Args>
inline void softmax_tile_any(QueryRow** rows, int64_t num, const Tile& tile, Args... args) {
  if constexpr (N > 1)
    if (tile.num_vectors() < N) return softmax_tile_any<N - 1>(rows, num, tile, args...);
  softmax_tile<N>(rows, num, tile, args...);
}

// All rows attend to the tile whose first key is at slot `start`.
inline void attend_tile(QueryRow** rows, int64_t num, const Tile& tile, const ScoreParams& params,
                        int64_t start, int64_t head_size, int64_t value_size, float* scores) {
  softmax_tile_any(rows, num, tile, params, start, head_size, scores);
  constexpr int64_t COLUMNS = 4 * W;
  for (int64_t at = 0; at < value_size; at += COLUMNS)
    in_row_blocks(0, num, [&](auto R, int64_t i) {
      accumulate_pv_all<R>(rows + i, tile, scores + i * TILE, at,
                           std::min(at + COLUMNS, value_size));
    });
}

}  // namespace weft
