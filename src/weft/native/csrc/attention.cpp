// Attention over pages: each query row meets the keys of its own sequence where they lie.
//
// Rows of one key head that are worth computing together form a block: the heads of a group, the
// tokens of a prompt, and sequences whose pages are the same. A block goes through its tiles from
// left to right; in each tile, neighbours that read the same pages share one load of it. That is
// cascade attention (Ye 2024) on as many levels as the tables have, without a merge: sharing
// changes the order of the loops, never what one row adds to what.
#include <omp.h>

#include <numeric>
#include <vector>

#include "pages.h"
#include "rows.h"

namespace weft {
namespace {

constexpr int64_t LEAST_ROWS = 12, MOST_ROWS = 96;  // of a block
constexpr int64_t LINE = 16;                        // numbers of a cache line
constexpr int64_t FAR = 3 << 17;                    // keys and values that come from afar
constexpr int64_t FEW = QUERY_ROWS;                       // rows for which no turned keys are kept
constexpr int64_t LITTLE = 1 << 14;                 // pairs that one thread does sooner than two

bool share_first_page(const PagedCall& call, int64_t a, int64_t b) {
  const bool have_pages = call.lengths[a] > 0 && call.lengths[b] > 0;
  return have_pages && page_of(call, a, 0) != 0 && page_of(call, a, 0) == page_of(call, b, 0);
}

void set_reach(const PagedCall& call, Row& row) {
  row.first = 0;
  row.last = call.lengths[row.sequence] - 1;
  if (call.is_causal) row.last = std::min(row.last, row.slot);
  if (call.window > 0) {
    row.first = std::max<int64_t>(0, row.slot - call.window + 1);
    row.last = std::min(row.last, row.slot + call.window - 1);
  }
}

// Memory of one thread, kept from call to call.
struct Scratch {
  std::vector<Row> rows;
  std::vector<Row*> active;
  std::vector<float> numbers;
  float *scores, *sums;
  TileScratch tile;

  // Places for `num` rows. Sums and zeros are 0 afterwards.
  void reserve(const PagedCall& call, int64_t num) {
    const int64_t U = call.padded_size(), widest = std::max(U, call.head_size);
    const int64_t size = (call.head_size + U + num) * TILE + num * U + widest;
    if (static_cast<int64_t>(numbers.size()) < size + 6 * LINE) numbers.resize(size + 6 * LINE);
    float* next = numbers.data();
    tile.keys = take(next, call.head_size * TILE);
    tile.values = take(next, U * TILE);
    scores = take(next, num * TILE);
    sums = take(next, num * U);
    float* zeros = take(next, widest);
    std::fill(sums, sums + num * U, 0.0f);
    std::fill(zeros, zeros + widest, 0.0f);
    tile.zeros = zeros;
  }

  // `size` numbers from the next border of a cache line on.
  static float* take(float*& next, int64_t size) {
    const uintptr_t bytes = LINE * sizeof(float);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(next) + bytes - 1) / bytes * bytes;
    float* taken = reinterpret_cast<float*>(at);
    next = taken + size;
    return taken;
  }
};

int64_t count_rows(const PagedCall& call, const Block& block) {
  int64_t queries = 0;
  for (const Piece& piece : block) queries += piece.end - piece.begin;
  return queries * call.group();
}

Row make_row(const PagedCall& call, int64_t sequence, int64_t n, int64_t h) {
  Row row{};
  row.q = call.q + n * call.q_token + h * call.q_head;
  row.out = call.out + (n * call.heads + h) * call.value_size;
  row.lse = call.lse == nullptr ? nullptr : call.lse + n * call.heads + h;
  row.bias = call.bias == nullptr ? nullptr : call.bias + h * call.distances;
  row.sequence = sequence;
  row.slot = call.starts[sequence] + n - call.offsets[sequence];
  row.peak = NOTHING;
  set_reach(call, row);
  return row;
}

// The rows of a block that read key heads begin..end, head after head.
void make_rows(const PagedCall& call, const Block& block, int64_t begin, int64_t end,
               Scratch& scratch) {
  scratch.reserve(call, count_rows(call, block) * (end - begin));
  scratch.rows.clear();
  for (int64_t key_head = begin; key_head < end; key_head++)
    for (const Piece& piece : block)
      for (int64_t n = piece.begin; n < piece.end; n++)
        for (int64_t g = 0; g < call.group(); g++) {
          Row row = make_row(call, piece.sequence, n, key_head * call.group() + g);
          row.sum = scratch.sums + scratch.rows.size() * call.padded_size();
          scratch.rows.push_back(row);
        }
}

// Reads numbers that are needed soon, for nothing but to have them close by.
void fetch(const float* numbers, int64_t size) {
  for (int64_t i = 0; i < size; i += LINE) *const_cast<const volatile float*>(numbers + i);
}

// Fetches a tile's rows of key heads begin..end in the order in which they lie. Head after head
// they would be read in steps, which the processor does not foresee, and waits for each.
void fetch_rows(const PagedCall& call, int64_t sequence, int64_t start, const Tile& tile,
                int64_t begin, int64_t end) {
  const Strides &k = call.k_stride, &v = call.v_stride;
  each_page(call, sequence, start, tile, [&](int from, int to, int64_t page, int64_t row) {
    const float *keys = call.k + page * k.page + row * k.row;
    const float *values = call.v + page * v.page + row * v.row;
    for (int j = from; j < to; j++, keys += k.row, values += v.row) {
      for (int64_t head = begin; head < end; head++) fetch(keys + head * k.head, call.head_size);
      for (int64_t head = begin; head < end; head++) fetch(values + head * v.head, call.value_size);
    }
  });
}

// Rows of a block that read one tile together.
struct Run {
  int64_t leader = -1;  // the longest of their sequences
  Tile tile;

  Run() { tile.begin = TILE, tile.end = 0; }

  void add(const PagedCall& call, Row& row, int64_t start, Scratch& scratch) {
    if (leader < 0 || call.lengths[row.sequence] > call.lengths[leader]) leader = row.sequence;
    tile.begin = std::min<int64_t>(tile.begin, std::max<int64_t>(0, row.first - start));
    tile.end = std::max<int64_t>(tile.end, std::min<int64_t>(TILE, row.last - start + 1));
    scratch.active.push_back(&row);
  }

  // Before the first of some heads, the rows of all of them are fetched.
  void finish(const PagedCall& call, int64_t key_head, int64_t heads, int64_t start,
              Scratch& scratch) {
    if (leader < 0) return;
    if (heads > 1) fetch_rows(call, leader, start, tile, key_head, key_head + heads);
    const int64_t num = scratch.active.size();
    const bool is_turned = num > FEW || call.head_size % W != 0;
    load_tile(call, leader, key_head, start, is_turned, tile, scratch.tile);
    const Rule rule{call.scale, call.softcap, call.distances, call.zero_distance};
    meet(scratch.active.data(), num, tile, rule, start, call.head_size,
         call.padded_size(), scratch.scores);
    scratch.active.clear();
    leader = -1, tile.begin = TILE, tile.end = 0;
  }
};

// The rows of one key head meet the tile at `start`, those that read the same pages together. For
// the next heads - 1, which will come to the same tile, its rows are fetched too.
void meet_tile(const PagedCall& call, int64_t key_head, int64_t heads, int64_t start, Row* rows,
               int64_t num, Scratch& scratch) {
  Run run;
  for (Row* row = rows; row < rows + num; row++) {
    if (row->last < std::max(start, row->first) || row->first >= start + TILE) continue;
    const bool is_other = run.leader >= 0 && run.leader != row->sequence;
    if (is_other && !share_tile(call, run.leader, row->sequence, start))
      run.finish(call, key_head, heads, start, scratch);
    run.add(call, *row, start, scratch);
  }
  run.finish(call, key_head, heads, start, scratch);
}

void finish_row(const PagedCall& call, const Row& row) {
  const float total = sum_of_lanes(row.total);
  const bool is_empty = row.peak == NOTHING && total == 0;  // not NaN
  const float share = is_empty ? 0.0f : 1.0f / total;
  for (int64_t u = 0; u < call.value_size; u++) row.out[u] = row.sum[u] * share;
  if (row.lse != nullptr) *row.lse = is_empty ? NOTHING : row.peak + std::log(total);
}

void attend(const PagedCall& call, const Block& block, int64_t begin, int64_t end, bool is_far) {
  static thread_local Scratch scratch;
  make_rows(call, block, begin, end, scratch);
  int64_t first = INT64_MAX, last = -1;
  for (const Row& row : scratch.rows) {
    if (row.last < row.first) continue;
    first = std::min(first, row.first / TILE);
    last = std::max(last, row.last / TILE);
  }
  const int64_t num = scratch.rows.size() / (end - begin);
  for (int64_t tile = first; tile <= last; tile++)
    for (int64_t head = begin; head < end; head++) {
      const int64_t heads = head == begin && is_far ? end - begin : 1;
      meet_tile(call, head, heads, tile * TILE, &scratch.rows[(head - begin) * num], num, scratch);
    }
  for (const Row& row : scratch.rows) finish_row(call, row);
}

int64_t pairs(const PagedCall& call) {
  int64_t sum = 0;
  for (int64_t b = 0; b < call.sequences; b++)
    sum += (call.offsets[b + 1] - call.offsets[b]) * call.lengths[b] * call.heads;
  return sum;
}

}  // namespace

// Cuts the queries, sequence after sequence in the given order, into blocks of some rows. A block
// goes on into the next sequence only where the two begin with the same page.
std::vector<Block> cut(const PagedCall& call) {
  const int64_t group = call.group(), queries = call.offsets[call.sequences];
  const int64_t even = queries * call.heads / (6 * call.threads);
  const int64_t room = std::max<int64_t>(1, std::clamp(even, LEAST_ROWS, MOST_ROWS) / group);
  std::vector<Block> blocks;
  int64_t left = 0, before = -1;
  for (int64_t i = 0; i < call.sequences; i++) {
    const int64_t b = call.order[i];
    int64_t at = call.offsets[b];
    if (before < 0 || !share_first_page(call, before, b)) left = 0;
    while (at < call.offsets[b + 1]) {
      if (left == 0) blocks.emplace_back(), left = room;
      const int64_t end = std::min<int64_t>(at + left, call.offsets[b + 1]);
      blocks.back().push_back({b, at, end});
      left -= end - at, at = end, before = b;
    }
  }
  return blocks;
}

void attend_blocks(const PagedCall& call, const std::vector<Block>& blocks, int64_t threads) {
  const int64_t num = blocks.size(), K = call.key_heads;
  // heads lie side by side in a page: one after the other, they read memory as it comes
  const int64_t each = num >= 4 * threads ? K : 1, parts = K / each;
  const int64_t keys = std::accumulate(call.lengths, call.lengths + call.sequences, int64_t{0});
  const bool is_far = keys * K * (call.head_size + call.value_size) > FAR;
#pragma omp for schedule(dynamic, 1)
  for (int64_t task = 0; task < num * parts; task++) {
    // from the last block on: the end of a prompt has the most keys before it
    const Block& block = blocks[num - 1 - task / parts];
    const int64_t begin = task % parts * each;
    attend(call, block, begin, begin + each, is_far);
  }
}

}  // namespace weft

EXPORT int64_t weft_paged_call_size() { return sizeof(weft::PagedCall); }

EXPORT void weft_paged_attention(const weft::PagedCall* call) {
  using namespace weft;
  const std::vector<Block> blocks = cut(*call);
  const int64_t threads = pairs(*call) < LITTLE ? 1 : call->threads;
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
  attend_blocks(*call, blocks, threads);
}
