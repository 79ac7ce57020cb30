// One call of attention over pages: what it is given, and how a tile of keys is read from there.
//
// Slot s of a sequence lies in page table[s / R], row s % R. A tile's keys are turned on the way,
// so that neighbouring keys lie side by side, and its values stay where they are. Pages of any
// number of rows and tensors of any strides will do, as long as the numbers of one head lie
// together.
#pragma once

#include "tile.h"

namespace weft {

struct Strides {
  int64_t page, row, head;
};

// Mirrors PagedStruct of structs.py.
struct PagedCall {
  const float *q, *k, *v, *bias;
  float *out, *lse;
  const int32_t *offsets, *starts, *lengths, *table, *order;
  Strides k_stride, v_stride;
  int64_t q_token, q_head;
  int64_t sequences, table_stride, heads, key_heads, head_size, value_size, page_rows;
  int64_t is_causal, window, distances, zero_distance, threads;
  float scale, softcap;

  int64_t group() const { return heads / key_heads; }
  int64_t padded_size() const { return (value_size + W - 1) / W * W; }
};

inline int32_t page_of(const PagedCall& call, int64_t sequence, int64_t index) {
  return call.table[sequence * call.table_stride + index];
}

// 8 keys of 8 numbers -> 8 numbers of 8 keys.
inline void turn(const float* const* keys, int64_t at, float* to) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef Eight Loose __attribute__((aligned(4), may_alias));
  Eight a[8], b[8];
  for (int i = 0; i < 4; i++) {
    const Eight low = *reinterpret_cast<const Loose*>(keys[i] + at);
    const Eight high = *reinterpret_cast<const Loose*>(keys[i + 4] + at);
    a[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
    a[i + 4] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      const Eight x = a[i + j], y = a[i + j + 2];
      b[i + j] = __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13);
      b[i + j + 2] = __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
    }
  for (int i = 0; i < 8; i += 2) {
    *reinterpret_cast<Loose*>(to + i * TILE) =
        __builtin_shufflevector(b[i], b[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    *reinterpret_cast<Loose*>(to + (i + 1) * TILE) =
        __builtin_shufflevector(b[i], b[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
}

// The keys of the tile, with those beside them as far as whole vectors are read.
inline void turn_all(const float* const* keys, const Tile& tile, int64_t head_size, float* to) {
  const int first = tile.first_vector() * W, end = first + tile.num_vectors() * W;
  for (int j = first / 8 * 8; j < end; j += 8) {
    int64_t c = 0;
    for (; c + 8 <= head_size; c += 8) turn(keys + j, c, to + c * TILE + j);
    for (; c < head_size; c++)
      for (int i = j; i < j + 8; i++) to[c * TILE + i] = keys[i][c];
  }
}

// Points at keys begin..end of the tile in the pages of a sequence; the others, and those of page
// 0, are zeros: what lies there may be no number.
inline void find_rows(const PagedCall& call, int64_t sequence, int64_t key_head, int64_t start,
                      Tile& tile, const float** keys, const float* zeros) {
  std::fill(keys, keys + TILE, zeros);
  std::fill(tile.values, tile.values + TILE, zeros);
  const Strides &k = call.k_stride, &v = call.v_stride;
  int64_t index = (start + tile.begin) / call.page_rows;
  int64_t row = (start + tile.begin) % call.page_rows;
  for (int j = tile.begin; j < tile.end; index++, row = 0) {
    const int64_t page = page_of(call, sequence, index);
    const int end = std::min<int64_t>(tile.end, j + call.page_rows - row);
    const float* key = call.k + page * k.page + row * k.row + key_head * k.head;
    const float* value = call.v + page * v.page + row * v.row + key_head * v.head;
    if (page == 0) j = end;
    for (; j < end; j++, key += k.row, value += v.row) keys[j] = key, tile.values[j] = value;
  }
}

// Memory that a tile is read into.
struct TileScratch {
  float *keys, *values;
  const float* zeros;
};

inline void load_tile(const PagedCall& call, int64_t sequence, int64_t key_head, int64_t start,
                      Tile& tile, const TileScratch& scratch) {
  const float* keys[TILE];
  find_rows(call, sequence, key_head, start, tile, keys, scratch.zeros);
  turn_all(keys, tile, call.head_size, scratch.keys);
  tile.keys = scratch.keys;
  const int64_t U = call.value_size;
  if (U == call.padded_size()) return;
  for (int j = tile.begin; j < tile.end; j++) {
    float* copy = scratch.values + j * call.padded_size();
    tile.values[j] = std::copy(tile.values[j], tile.values[j] + U, copy) - U;
  }
}

// Whether two sequences read the same pages in a tile, as far as both have keys there.
inline bool share_tile(const PagedCall& call, int64_t a, int64_t b, int64_t start) {
  const int64_t end = std::min<int64_t>({call.lengths[a], call.lengths[b], start + TILE});
  for (int64_t page = start / call.page_rows; page * call.page_rows < end; page++)
    if (page_of(call, a, page) != page_of(call, b, page)) return false;
  return true;
}

}  // namespace weft
