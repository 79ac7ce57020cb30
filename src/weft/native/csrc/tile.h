// A tile of TILE keys against some query rows: scores, running softmax, weighted values.
//
// Every number has one order of summation, whatever else is in the call: a score is one chain over
// the head's numbers, the softmax goes from tile to tile (Milakov 2018), a value is one chain over
// the keys of the tile. A key that a row may not see weighs exactly 0 and leaves the row's maximum,
// so it changes nothing. Vectors of keys outside begin..end are passed over for the same reason.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "turned.h"

namespace weft {

constexpr int TILE = 32;
constexpr int TILE_VECTORS = TILE / W;        // of a row of scores
constexpr int QUERY_ROWS = W == 16 ? 6 : 3;   // query rows whose sums fit into the registers
constexpr int64_t CHUNK = 128;                // numbers of a head whose keys stay close by

// The keys of a tile, where they lie and numbers first, and where its values lie. Keys outside
// begin..end are zero.
struct Tile {
  float* keys;  // [C][TILE]; null: they are turned by whoever reads them
  const float *rows[TILE], *values[TILE];
  int begin, end;

  int first_vector() const { return begin / W; }
  int num_vectors() const { return (end + W - 1) / W - first_vector(); }
};

// What a query row has seen so far.
struct Row {
  const float* q;
  float* sum;  // [U], weighted values
  float* out;
  float* lse;
  const float* bias;  // by distance; null: none
  int64_t sequence, slot;
  int64_t first, last;  // keys it may see; last < first: none
  float peak;
  float share;  // of the old sum that stays when the peak grows
  Vec total;    // sum of weights, one lane for every W-th key
};

// scores[row][key] (+)= q[row] . key over the numbers begin..end of the head, for N vectors of keys.
template <int R, int N>
void score(const Row* const* rows, const Tile& tile, int64_t begin, int64_t end, float* scores) {
  Vec sums[R][N];
  const float* q[R];
  const int at = tile.first_vector() * W;
  scores += at;
  UNROLL for (int r = 0; r < R; r++) {
    q[r] = rows[r]->q;
    UNROLL for (int v = 0; v < N; v++)
      sums[r][v] = begin == 0 ? Vec{} : load(scores + r * TILE + v * W);
  }
  const float* keys = tile.keys + at;
  for (int64_t c = begin; c < end; c++) {
    Vec factors[R];
    UNROLL for (int r = 0; r < R; r++) factors[r] = splat(q[r][c]);
    UNROLL for (int v = 0; v < N; v++) {
      const Vec key = held(load(keys + c * TILE + v * W));
      UNROLL for (int r = 0; r < R; r++) sums[r][v] = fma(factors[r], key, sums[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < N; v++) store(scores + r * TILE + v * W, sums[r][v]);
}

// The same for few rows and one vector of keys, the first of which is keys[0]: they are turned on
// the way and never written.
template <int R>
void score_few(const Row* const* rows, const float* const* keys, int64_t head_size, float* scores) {
  Vec sums[R] = {};
  const float* q[R];
  UNROLL for (int r = 0; r < R; r++) q[r] = rows[r]->q;
  for (int64_t c = 0; c < head_size; c += W) {
    Vec columns[W];
    turned(keys, c, columns);
    UNROLL for (int i = 0; i < W; i++)
      UNROLL for (int r = 0; r < R; r++)
        sums[r] = fma(splat(q[r][c + i]), columns[i], sums[r]);
  }
  UNROLL for (int r = 0; r < R; r++) store(scores + r * TILE, sums[r]);
}

// sum[row] = share[row] sum[row] + weights[row] . values, for `V` vectors from number `at` on.
template <int R, int V>
void weigh(const Row* const* rows, const Tile& tile, const float* weights, int64_t at) {
  Vec sums[R][V];
  float* sum[R];
  UNROLL for (int r = 0; r < R; r++) {
    sum[r] = rows[r]->sum + at;
    const Vec share = splat(rows[r]->share);
    UNROLL for (int v = 0; v < V; v++) sums[r][v] = load(sum[r] + v * W) * share;
  }
  for (int key = tile.begin; key < tile.end; key++) {
    Vec factors[R];
    UNROLL for (int r = 0; r < R; r++) factors[r] = splat(weights[r * TILE + key]);
    const float* values = tile.values[key] + at;
    UNROLL for (int v = 0; v < V; v++) {
      const Vec value = held(load(values + v * W));
      UNROLL for (int r = 0; r < R; r++) sums[r][v] = fma(factors[r], value, sums[r][v]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int v = 0; v < V; v++) store(sum[r] + v * W, sums[r][v]);
}

struct Rule {
  float scale, softcap;  // softcap 0: none
  int64_t distances, zero;  // entries of a bias row, and the entry of distance 0
};

inline Ints lane_numbers() {
  Ints lanes;
  for (int lane = 0; lane < W; lane++) lanes[lane] = lane;
  return lanes;
}

// The biases of one row for the W keys from slot `key` on.
inline Vec bias_of(const Row& row, const Rule& rule, int64_t key) {
  const int64_t nearest = row.slot - key - (W - 1) + rule.zero, last = rule.distances - 1;
  if (nearest >= last) return splat(row.bias[last]);
  if (nearest >= 0 && nearest + W - 1 <= last)
    return __builtin_shuffle(load(row.bias + nearest), W - 1 - lane_numbers());
  Vec bias;
  for (int lane = 0; lane < W; lane++)
    bias[lane] = row.bias[std::clamp<int64_t>(nearest + (W - 1) - lane, 0, last)];
  return bias;
}

// W raw scores, from slot `key` on -> what enters the softmax.
inline Vec finished(Vec score, const Row& row, const Rule& rule, int64_t key) {
  score = score * rule.scale;
  if (rule.softcap != 0) score = tanh_of(score / rule.softcap) * rule.softcap;
  if (row.bias != nullptr) score = score + bias_of(row, rule, key);
  if (key >= row.first && key + W - 1 <= row.last) return score;
  const int64_t low = std::clamp<int64_t>(row.first - key, 0, W);
  const int64_t high = std::clamp<int64_t>(row.last - key, -1, W);
  const Ints lane = lane_numbers();
  const Ints seen = (lane >= static_cast<int32_t>(low)) & (lane <= static_cast<int32_t>(high));
  return seen ? score : splat(NOTHING);
}

// The scores of one row become weights, against the largest score so far: those of N vectors of
// keys, the first of which stands at slot `key`.
template <int N>
void soften(Row& row, const Rule& rule, int64_t key, float* scores) {
  Vec score[N], best = splat(NOTHING);
  UNROLL for (int v = 0; v < N; v++) {
    score[v] = finished(load(scores + v * W), row, rule, key + v * W);
    best = larger(best, score[v]);
  }
  const float peak = std::max(row.peak, largest_lane(best));
  if (peak == NOTHING) {  // every score is -inf, whose weight is 0, or NaN, whose weight is NaN
    row.share = 1;
    UNROLL for (int v = 0; v < N; v++) {
      const Vec weights = exp_of(score[v]);
      store(scores + v * W, weights);
      row.total = row.total + weights;
    }
    return;
  }
  const Vec share = row.peak == NOTHING ? Vec{} : exp_of(splat(row.peak - peak));
  row.share = share[0];
  row.peak = peak;
  Vec total = row.total * share;
  UNROLL for (int v = 0; v < N; v++) {
    const Vec weights = exp_of(score[v] - peak);
    store(scores + v * W, weights);
    total = total + weights;
  }
  row.total = total;
}

template <int R, int V = 4>
void weigh_all(const Row* const* rows, const Tile& tile, const float* weights, int64_t at,
               int64_t size) {
  for (; at + V * W <= size; at += V * W) weigh<R, V>(rows, tile, weights, at);
  if constexpr (V > 1) weigh_all<R, V / 2>(rows, tile, weights, at, size);
}

// Calls use<R>(i) for i = 0, R, 2R, ... so that all of 0..num are met, with R up to QUERY_ROWS.
template <int R = QUERY_ROWS, class Use>
inline void in_blocks(int64_t from, int64_t num, Use use) {
  for (; from + R <= num; from += R) use(std::integral_constant<int, R>(), from);
  if constexpr (R > 1) in_blocks<R - 1>(from, num, use);
}

// All rows get their scores and weights of N vectors of keys.
template <int N>
void weight_keys(Row** rows, int64_t num, const Tile& tile, const Rule& rule, int64_t start,
                 int64_t head_size, float* scores) {
  const int at = tile.first_vector() * W;
  for (int64_t c = 0; c < head_size && tile.keys != nullptr; c += CHUNK)
    in_blocks(0, num, [&](auto R, int64_t i) {
      score<R, N>(rows + i, tile, c, std::min(c + CHUNK, head_size), scores + i * TILE);
    });
  for (int v = 0; v < N && tile.keys == nullptr; v++)
    in_blocks(0, num, [&](auto R, int64_t i) {
      score_few<R>(rows + i, tile.rows + at + v * W, head_size, scores + i * TILE + at + v * W);
    });
  for (int64_t i = 0; i < num; i++) soften<N>(*rows[i], rule, start + at, scores + i * TILE + at);
}

// The same, with N as the tile needs it.
template <int N = TILE_VECTORS, class... Given>
inline void weight_all(Row** rows, int64_t num, const Tile& tile, Given... given) {
  if constexpr (N > 1)
    if (tile.num_vectors() < N) return weight_all<N - 1>(rows, num, tile, given...);
  weight_keys<N>(rows, num, tile, given...);
}

// All rows meet the tile whose first key stands at slot `start`.
inline void meet(Row** rows, int64_t num, const Tile& tile, const Rule& rule, int64_t start,
                 int64_t head_size, int64_t value_size, float* scores) {
  weight_all(rows, num, tile, rule, start, head_size, scores);
  constexpr int64_t COLUMNS = 4 * W;
  for (int64_t at = 0; at < value_size; at += COLUMNS)
    in_blocks(0, num, [&](auto R, int64_t i) {
      weigh_all<R>(rows + i, tile, scores + i * TILE, at, std::min(at + COLUMNS, value_size));
    });
}

}  // namespace weft
