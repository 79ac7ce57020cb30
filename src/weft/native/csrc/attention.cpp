// Paged attention: query rows attend to the keys of their sequence, read from the pages in place.
//
// Query rows of one key/value head are computed in blocks: the query heads of a group, the tokens
// of a prompt chunk, and sequences that share a prefix. A block processes its tiles from left to
// right; in each tile, rows that read the same pages share one load. This is cascade attention (Ye
// 2024) with as many levels as the page tables have, without a merge step: sharing changes the
// order of the loops, not the order of the additions of a row.
#include <omp.h>

#include <numeric>
#include <vector>

#include "abi.h"
#include "layer_ops.h"
#include "pages.h"

namespace weft {
namespace {

constexpr int64_t MIN_BLOCK_ROWS = 12, MAX_BLOCK_ROWS = 96;  // of a block
constexpr int64_t CACHE_LINE = 16;                           // floats
constexpr int64_t STREAMING_SIZE = 3 << 17;  // floats of keys and values that exceed the L2 cache
constexpr int64_t MAX_UNTRANSPOSED_ROWS = QUERY_ROWS;  // more: keys are transposed in memory
constexpr int64_t MIN_PARALLEL_PAIRS = 1 << 14;  // query-key pairs; fewer are faster on one thread

bool share_first_page(const PagedAttentionCall& call, int64_t a, int64_t b) {
  const bool have_pages = call.lengths[a] > 0 && call.lengths[b] > 0;
  return have_pages && page_of(call, a, 0) != 0 && page_of(call, a, 0) == page_of(call, b, 0);
}

void set_visible_keys(const PagedAttentionCall& call, QueryRow& row) {
  row.first_key = 0;
  row.last_key = call.lengths[row.sequence] - 1;
  if (call.is_causal) row.last_key = std::min(row.last_key, row.slot);
  if (call.window > 0) {
    row.first_key = std::max<int64_t>(0, row.slot - call.window + 1);
    row.last_key = std::min(row.last_key, row.slot + call.window - 1);
  }
}

// Memory of one thread, reused from call to call.
struct Scratch {
  std::vector<QueryRow> rows;
  std::vector<QueryRow*> active;
  std::vector<float> numbers;
  float *scores, *sums;
  TileScratch tile;

  // Memory for `num` rows. Sets the sums and `zeros` to 0.
  void reserve(const PagedAttentionCall& call, int64_t num) {
    const int64_t U = padded_size(call), widest = std::max(U, call.head_size);
    const int64_t size = (call.head_size + U + num) * TILE + num * U + widest;
    if (static_cast<int64_t>(numbers.size()) < size + 6 * CACHE_LINE)
      numbers.resize(size + 6 * CACHE_LINE);
    float* next = numbers.data();
    tile.keys = aligned(next, call.head_size * TILE);
    tile.values = aligned(next, U * TILE);
    scores = aligned(next, num * TILE);
    sums = aligned(next, num * U);
    float* zeros = aligned(next, widest);
    std::fill(sums, sums + num * U, 0.0f);
    std::fill(zeros, zeros + widest, 0.0f);
    tile.zeros = zeros;
  }

  // `size` floats from the next cache line on.
  static float* aligned(float*& next, int64_t size) {
    const uintptr_t bytes = CACHE_LINE * sizeof(float);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(next) + bytes - 1) / bytes * bytes;
    float* start = reinterpret_cast<float*>(at);
    next = start + size;
    return start;
  }
};

int64_t count_rows(const PagedAttentionCall& call, const QueryBlock& block) {
  int64_t queries = 0;
  for (const QuerySpan& piece : block) queries += piece.end - piece.begin;
  return queries * group_size(call);
}

QueryRow make_row(const PagedAttentionCall& call, int64_t sequence, int64_t n, int64_t h) {
  QueryRow row{};
  row.q = call.q + n * call.q_token + h * call.q_head;
  row.out = call.out + (n * call.heads + h) * call.value_size;
  row.lse = call.lse == nullptr ? nullptr : call.lse + n * call.heads + h;
  if (call.bias != nullptr) row.bias = call.bias + n * call.bias_token + h * call.distances;
  if (call.mask != nullptr) row.mask = call.mask + n * call.mask_token;
  row.sequence = sequence;
  row.slot = call.starts[sequence] + n - call.offsets[sequence];
  row.max_score = NEG_INF;
  set_visible_keys(call, row);
  return row;
}

// The query rows of a block for key heads begin..end, one head after another.
void make_rows(const PagedAttentionCall& call, const QueryBlock& block, int64_t begin, int64_t end,
               Scratch& scratch) {
  scratch.reserve(call, count_rows(call, block) * (end - begin));
  scratch.rows.clear();
  for (int64_t key_head = begin; key_head < end; key_head++)
    for (const QuerySpan& piece : block)
      for (int64_t n = piece.begin; n < piece.end; n++)
        for (int64_t g = 0; g < group_size(call); g++) {
          QueryRow row = make_row(call, piece.sequence, n, key_head * group_size(call) + g);
          row.sum = scratch.sums + scratch.rows.size() * padded_size(call);
          scratch.rows.push_back(row);
        }
}

// Loads memory into the cache.
void touch(const float* numbers, int64_t size) {
  for (int64_t i = 0; i < size; i += CACHE_LINE) *const_cast<const volatile float*>(numbers + i);
}

// Loads a tile's rows of key heads begin..end in memory order. One head after another, they would
// be read with a stride that the hardware prefetcher does not follow.
void touch_rows(const PagedAttentionCall& call, int64_t sequence, int64_t start, const Tile& tile,
                int64_t begin, int64_t end) {
  const PageStrides &k = call.k_stride, &v = call.v_stride;
  for_each_page(call, sequence, start, tile, [&](int from, int to, int64_t page, int64_t row) {
    const float* keys = call.k + page * k.page + row * k.row;
    const float* values = call.v + page * v.page + row * v.row;
    for (int j = from; j < to; j++, keys += k.row, values += v.row) {
      for (int64_t head = begin; head < end; head++) touch(keys + head * k.head, call.head_size);
      for (int64_t head = begin; head < end; head++) touch(values + head * v.head, call.value_size);
    }
  });
}

// Query rows that read the same pages of a tile and share one load of it.
struct TileGroup {
  int64_t longest = -1;  // the longest of their sequences, whose page table is read
  Tile tile;

  TileGroup() { tile.begin = TILE, tile.end = 0; }

  void add(const PagedAttentionCall& call, QueryRow& row, int64_t start, Scratch& scratch) {
    if (longest < 0 || call.lengths[row.sequence] > call.lengths[longest]) longest = row.sequence;
    tile.begin = std::min<int64_t>(tile.begin, std::max<int64_t>(0, row.first_key - start));
    tile.end = std::max<int64_t>(tile.end, std::min<int64_t>(TILE, row.last_key - start + 1));
    scratch.active.push_back(&row);
  }

  // Attend to the tile. `heads` > 1: the rows of that many heads are loaded into the cache first.
  void finish(const PagedAttentionCall& call, int64_t key_head, int64_t heads, int64_t start,
              Scratch& scratch) {
    if (longest < 0) return;
    if (heads > 1) touch_rows(call, longest, start, tile, key_head, key_head + heads);
    const int64_t num = scratch.active.size();
    const bool is_transposed = num > MAX_UNTRANSPOSED_ROWS || call.head_size % W != 0;
    load_tile(call, longest, key_head, start, is_transposed, tile, scratch.tile);
    const ScoreParams params{call.scale, call.softcap, call.distances, call.zero_distance};
    attend_tile(scratch.active.data(), num, tile, params, start, call.head_size, padded_size(call),
                scratch.scores);
    scratch.active.clear();
    longest = -1, tile.begin = TILE, tile.end = 0;
  }
};

// The query rows of one key head attend to the tile at `start`, grouped by shared pages. `heads` >
// 1: that many key heads will read this tile one after another.
void attend_groups(const PagedAttentionCall& call, int64_t key_head, int64_t heads, int64_t start,
                   QueryRow* rows, int64_t num, Scratch& scratch) {
  TileGroup group;
  for (QueryRow* row = rows; row < rows + num; row++) {
    if (row->last_key < std::max(start, row->first_key) || row->first_key >= start + TILE) continue;
    const bool is_other = group.longest >= 0 && group.longest != row->sequence;
    if (is_other && !share_tile(call, group.longest, row->sequence, start))
      group.finish(call, key_head, heads, start, scratch);
    group.add(call, *row, start, scratch);
  }
  group.finish(call, key_head, heads, start, scratch);
}

void finish_row(const PagedAttentionCall& call, const QueryRow& row) {
  const float sum_weights = reduce_add(row.sum_weights);
  const bool is_empty = row.max_score == NEG_INF && sum_weights == 0;  // not NaN
  const float inverse = is_empty ? 0.0f : 1.0f / sum_weights;
  for (int64_t u = 0; u < call.value_size; u++) row.out[u] = row.sum[u] * inverse;
  if (row.lse != nullptr) *row.lse = is_empty ? NEG_INF : row.max_score + std::log(sum_weights);
}

void attend(const PagedAttentionCall& call, const QueryBlock& block, int64_t begin, int64_t end,
            bool is_streaming) {
  static thread_local Scratch scratch;
  make_rows(call, block, begin, end, scratch);
  int64_t first = INT64_MAX, last = -1;
  for (const QueryRow& row : scratch.rows) {
    if (row.last_key < row.first_key) continue;
    first = std::min(first, row.first_key / TILE);
    last = std::max(last, row.last_key / TILE);
  }
  const int64_t num = scratch.rows.size() / (end - begin);
  for (int64_t tile = first; tile <= last; tile++)
    for (int64_t head = begin; head < end; head++) {
      const int64_t heads = head == begin && is_streaming ? end - begin : 1;
      attend_groups(call, head, heads, tile * TILE, &scratch.rows[(head - begin) * num], num,
                    scratch);
    }
  for (const QueryRow& row : scratch.rows) finish_row(call, row);
}

int64_t num_pairs(const PagedAttentionCall& call) {
  int64_t sum = 0;
  for (int64_t b = 0; b < call.sequences; b++)
    sum += (call.offsets[b + 1] - call.offsets[b]) * call.lengths[b] * call.heads;
  return sum;
}

}  // namespace

// Splits the queries, in the order of `call.order`, into blocks. A block continues with the next
// sequence only if both begin with the same page.
std::vector<QueryBlock> split_queries(const PagedAttentionCall& call) {
  const int64_t group = group_size(call), queries = call.offsets[call.sequences];
  const int64_t even_share = queries * call.heads / (6 * call.threads);
  const int64_t max_queries =
      std::max<int64_t>(1, std::clamp(even_share, MIN_BLOCK_ROWS, MAX_BLOCK_ROWS) / group);
  std::vector<QueryBlock> blocks;
  int64_t remaining = 0, previous = -1;
  for (int64_t i = 0; i < call.sequences; i++) {
    const int64_t b = call.order[i];
    int64_t at = call.offsets[b];
    if (previous < 0 || !share_first_page(call, previous, b)) remaining = 0;
    while (at < call.offsets[b + 1]) {
      if (remaining == 0) blocks.emplace_back(), remaining = max_queries;
      const int64_t end = std::min<int64_t>(at + remaining, call.offsets[b + 1]);
      blocks.back().push_back({b, at, end});
      remaining -= end - at, at = end, previous = b;
    }
  }
  return blocks;
}

void attend_blocks(const PagedAttentionCall& call, const std::vector<QueryBlock>& blocks,
                   int64_t threads, TeamError& error) {
  const int64_t num = blocks.size(), K = call.key_heads;
  // heads are adjacent in a page: a task with all heads reads memory sequentially
  const int64_t each = num >= 4 * threads ? K : 1, parts = K / each;
  const int64_t keys = std::accumulate(call.lengths, call.lengths + call.sequences, int64_t{0});
  const bool is_streaming = keys * K * (call.head_size + call.value_size) > STREAMING_SIZE;
#pragma omp for schedule(dynamic, 1)
  for (int64_t task = 0; task < num * parts; task++) {
    // last block first: the end of a prompt attends to the most keys
    const QueryBlock& block = blocks[num - 1 - task / parts];
    const int64_t begin = task % parts * each;
    error.run([&] { attend(call, block, begin, begin + each, is_streaming); });
  }
}

}  // namespace weft

int64_t weft_paged_attention(const WeftPagedAttention* call) {
  using namespace weft;
  return guarded([&] {
    const std::vector<QueryBlock> blocks = split_queries(*call);
    const int64_t threads = num_pairs(*call) < MIN_PARALLEL_PAIRS ? 1 : call->threads;
    TeamError error;
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
    attend_blocks(*call, blocks, threads, error);
    return error.code();
  });
}
