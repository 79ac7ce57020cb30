// Arguments of paged attention, and how a tile of keys is read from the pages.
//
// Slot s of a sequence is row s % R of page table[s / R]. The keys of a tile are transposed, so
// that neighboring keys are adjacent; its values are read in place. Any page size and any strides
// are possible as long as the elements of one head are contiguous.
#pragma once

#include "abi.h"
#include "tile.h"

namespace weft {

// Query heads per key head.
inline int64_t group_size(const PagedAttentionCall& call) { return call.heads / call.key_heads; }
// Size of a value, padded to whole vectors.
inline int64_t padded_size(const PagedAttentionCall& call) {
  return (call.value_size + W - 1) / W * W;
}

inline int32_t page_of(const PagedAttentionCall& call, int64_t sequence, int64_t index) {
  return call.table[sequence * call.table_stride + index];
}

// Transposes the keys of a tile, in whole vectors of keys.
inline void transpose_tile(const Tile& tile, int64_t head_size, float* to) {
  const int first = tile.first_vector() * W, end = first + tile.num_vectors() * W;
  for (int j = first; j < end; j += W) {
    const float* const* rows = tile.rows + j;
    int64_t c = 0;
    for (; c + W <= head_size; c += W) {
      Vec columns[W];
      transpose(rows, c, columns);
      UNROLL for (int i = 0; i < W; i++) store(to + (c + i) * TILE + j, columns[i]);
    }
    for (; c < head_size; c++)
      for (int i = 0; i < W; i++) to[c * TILE + j + i] = rows[i][c];
  }
}

// Calls use(begin, end, page, row) for the keys of a tile, page by page.
template <class Use>
inline void for_each_page(const PagedAttentionCall& call, int64_t sequence, int64_t start,
                          const Tile& tile, Use use) {
  int64_t index = (start + tile.begin) / call.page_rows;
  int64_t row = (start + tile.begin) % call.page_rows;
  for (int j = tile.begin; j < tile.end; index++, row = 0) {
    const int end = std::min<int64_t>(tile.end, j + call.page_rows - row);
    use(j, end, page_of(call, sequence, index), row);
    j = end;
  }
}

// Sets the pointers to the keys and values of a tile. Keys outside begin..end and those of page 0,
// the padding of page tables, point to zeros: their memory may contain NaN.
inline void locate_rows(const PagedAttentionCall& call, int64_t sequence, int64_t key_head,
                        int64_t start, Tile& tile, const float* zeros) {
  const PageStrides &k = call.k_stride, &v = call.v_stride;
  const int first = tile.first_vector() * W, last = first + tile.num_vectors() * W;
  std::fill(tile.rows + first, tile.rows + tile.begin, zeros);
  std::fill(tile.rows + tile.end, tile.rows + last, zeros);
  for_each_page(call, sequence, start, tile, [&](int begin, int end, int64_t page, int64_t row) {
    const bool is_valid = page != 0;
    const float* key = is_valid ? call.k + page * k.page + row * k.row + key_head * k.head : zeros;
    const float* value =
        is_valid ? call.v + page * v.page + row * v.row + key_head * v.head : zeros;
    for (int j = begin; j < end; j++) {
      tile.rows[j] = key, tile.values[j] = value;
      if (is_valid) key += k.row, value += v.row;
    }
  });
}

// Buffers for transposed keys and padded values.
struct TileScratch {
  float *keys, *values;
  const float* zeros;
};

// `is_transposed`: transpose the keys now, once for many query rows. For few rows the kernel
// transposes them in registers (tile.h).
inline void load_tile(const PagedAttentionCall& call, int64_t sequence, int64_t key_head,
                      int64_t start, bool is_transposed, Tile& tile, const TileScratch& scratch) {
  locate_rows(call, sequence, key_head, start, tile, scratch.zeros);
  tile.keys = is_transposed ? scratch.keys : nullptr;
  if (is_transposed) transpose_tile(tile, call.head_size, scratch.keys);
  const int64_t U = call.value_size;
  if (U == padded_size(call)) return;
  for (int j = tile.begin; j < tile.end; j++) {
    float* copy = scratch.values + j * padded_size(call);
    tile.values[j] = std::copy(tile.values[j], tile.values[j] + U, copy) - U;
  }
}

// Whether two sequences read the same pages in a tile, up to the shorter one's length.
inline bool share_tile(const PagedAttentionCall& call, int64_t a, int64_t b, int64_t start) {
  const int64_t end = std::min<int64_t>({call.lengths[a], call.lengths[b], start + TILE});
  for (int64_t page = start / call.page_rows; page * call.page_rows < end; page++)
    if (page_of(call, a, page) != page_of(call, b, page)) return false;
  return true;
}

}  // namespace weft
