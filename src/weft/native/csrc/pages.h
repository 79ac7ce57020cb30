// One call of attention over pages: what it is given, and how a tile of keys is read from there.
//
// Slot s of a sequence lies in page table[s / R], row s % R. A tile's keys are turned, so that
// neighbouring keys lie side by side, and its values stay where they are. Pages of any number of
// rows and tensors of any strides will do, as long as the numbers of one head lie together.
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

// The keys of the tile, with those beside them as far as whole vectors are read.
inline void turn_all(const Tile& tile, int64_t head_size, float* to) {
  const int first = tile.first_vector() * W, end = first + tile.num_vectors() * W;
  for (int j = first; j < end; j += W) {
    const float* const* rows = tile.rows + j;
    int64_t c = 0;
    for (; c + W <= head_size; c += W) {
      Vec columns[W];
      turned(rows, c, columns);
      UNROLL for (int i = 0; i < W; i++) store(to + (c + i) * TILE + j, columns[i]);
    }
    for (; c < head_size; c++)
      for (int i = 0; i < W; i++) to[c * TILE + j + i] = rows[i][c];
  }
}

// Calls use(first, last, page, row) for the keys of a tile, page by page.
template <class Use>
inline void each_page(const PagedCall& call, int64_t sequence, int64_t start, const Tile& tile,
                      Use use) {
  int64_t index = (start + tile.begin) / call.page_rows;
  int64_t row = (start + tile.begin) % call.page_rows;
  for (int j = tile.begin; j < tile.end; index++, row = 0) {
    const int end = std::min<int64_t>(tile.end, j + call.page_rows - row);
    use(j, end, page_of(call, sequence, index), row);
    j = end;
  }
}

// Points at keys begin..end of the tile in the pages of a sequence; the others, and those of page
// 0, are zeros: what lies there may be no number.
inline void find_rows(const PagedCall& call, int64_t sequence, int64_t key_head, int64_t start,
                      Tile& tile, const float* zeros) {
  const Strides &k = call.k_stride, &v = call.v_stride;
  const int first = tile.first_vector() * W, last = first + tile.num_vectors() * W;
  std::fill(tile.rows + first, tile.rows + tile.begin, zeros);
  std::fill(tile.rows + tile.end, tile.rows + last, zeros);
  each_page(call, sequence, start, tile, [&](int begin, int end, int64_t page, int64_t row) {
    const bool is_there = page != 0;
    const float* key = is_there ? call.k + page * k.page + row * k.row + key_head * k.head : zeros;
    const float* value = is_there ? call.v + page * v.page + row * v.row + key_head * v.head : zeros;
    for (int j = begin; j < end; j++) {
      tile.rows[j] = key, tile.values[j] = value;
      if (is_there) key += k.row, value += v.row;
    }
  });
}

// Memory that a tile is read into.
struct TileScratch {
  float *keys, *values;
  const float* zeros;
};

// For few query rows keys are turned as they meet them (tile.h): `is_turned` says that they shall
// be turned now, once for many.
inline void load_tile(const PagedCall& call, int64_t sequence, int64_t key_head, int64_t start,
                      bool is_turned, Tile& tile, const TileScratch& scratch) {
  find_rows(call, sequence, key_head, start, tile, scratch.zeros);
  tile.keys = is_turned ? scratch.keys : nullptr;
  if (is_turned) turn_all(tile, call.head_size, scratch.keys);
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
