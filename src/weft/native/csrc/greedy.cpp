// Lanes written on, pass after pass, each with the best token behind its last one, until it ends.
//
// Some lanes go at a time, and when one ends the next takes its place: their keys and values stay in
// the processor's caches from pass to pass, where those of all lanes together would come from
// memory each time.
#include <algorithm>
#include <vector>

#include "next.h"

namespace weft {

// B lanes. Mirrors GreedyStruct of structs.py.
struct Greedy {
  NextCall call;  // passes of all lanes; without ids, values, found and sums
  int64_t lanes, group, stride;
  const int64_t* ids;     // the last token of each
  const int64_t* ends;    // the token that ends each; none: below 0
  const int64_t* limits;  // passes of each
  double* scores;         // the logarithm of each one's probability grows
  int64_t* tokens;        // [B, stride]: what each has written, from the left
};

namespace {

// A lane that goes, and the passes it has gone through.
struct Going {
  int64_t lane, passes;
};

// Rows of a table that are read now.
struct Gathered {
  std::vector<int32_t> starts, lengths, table;

  void take(const PagedCall& from, const std::vector<Going>& going, const int32_t* offsets,
            PagedCall& to) {
    const int64_t P = from.table_stride;
    starts.clear(), lengths.clear(), table.clear();
    for (const Going& one : going) {
      const int64_t grown = from.is_causal ? one.passes : 0;  // a source does not grow
      starts.push_back(from.starts[one.lane] + grown);
      lengths.push_back(from.lengths[one.lane] + grown);
      table.insert(table.end(), from.table + one.lane * P, from.table + (one.lane + 1) * P);
    }
    to.starts = starts.data(), to.lengths = lengths.data(), to.table = table.data();
    to.offsets = offsets, to.sequences = going.size();
  }
};

class Writer {
 public:
  Writer(const Next& next, const Greedy& greedy) : next(next), greedy(greedy) {
    for (int64_t i = 0; i < greedy.call.num_passes; i++) passes.push_back(*greedy.call.passes[i]);
    for (LayerPass& pass : passes) places.push_back(&pass);
    own.resize(passes.size()), cross.resize(passes.size());
  }

  // How many lanes have ended; not all: a token has no row in the word table.
  int64_t write() {
    for (fill(); !going.empty(); fill()) {
      if (!run()) break;
      choose();
    }
    return waiting - static_cast<int64_t>(going.size());
  }

 private:
  void fill() {
    for (; waiting < greedy.lanes && static_cast<int64_t>(going.size()) < greedy.group; waiting++)
      if (greedy.limits[waiting] > 0)
        going.push_back({waiting, 0}), ids.push_back(greedy.ids[waiting]);
  }

  bool run() {
    const int64_t rows = going.size();
    offsets.resize(rows + 1), values.resize(rows), found.resize(rows), sums.resize(rows);
    for (int64_t n = 0; n <= rows; n++) offsets[n] = n;
    for (size_t i = 0; i < passes.size(); i++) {
      const LayerPass& all = *greedy.call.passes[i];
      own[i].take(all.own, going, offsets.data(), passes[i].own);
      if (all.cross.sequences > 0) cross[i].take(all.cross, going, offsets.data(), passes[i].cross);
      passes[i].rows = rows;
    }
    NextCall call = greedy.call;
    call.passes = places.data(), call.ids = ids.data(), call.count = 1;
    call.values = values.data(), call.found = found.data(), call.sums = sums.data();
    return find_next(next, call) == rows;
  }

  // Who has ended or comes to its limit leaves.
  void choose() {
    size_t kept = 0;
    for (size_t n = 0; n < going.size(); n++) {
      auto [lane, done] = going[n];
      const int64_t token = found[n];
      greedy.tokens[lane * greedy.stride + done++] = token;
      double& score = greedy.scores[lane];
      score += static_cast<double>(values[n]) - sums[n];
      const bool is_over = token == greedy.ends[lane] || !(score > -__builtin_inf());
      if (!is_over && done < greedy.limits[lane]) going[kept] = {lane, done}, ids[kept++] = token;
    }
    going.resize(kept), ids.resize(kept);
  }

  const Next& next;
  const Greedy& greedy;
  int64_t waiting = 0;  // the first lane that has not begun
  std::vector<Going> going;
  std::vector<LayerPass> passes;
  std::vector<LayerPass*> places;
  std::vector<Gathered> own, cross;
  std::vector<int64_t> ids, found;
  std::vector<int32_t> offsets;
  std::vector<float> values;
  std::vector<double> sums;
};

}  // namespace
}  // namespace weft

EXPORT int64_t weft_greedy_size() { return sizeof(weft::Greedy); }

// `done`: how many lanes have ended; where it is not all, a token has no row in the word table.
EXPORT void weft_greedy(const weft::Next* next, const weft::Greedy* greedy, int64_t* done) {
  *done = weft::Writer(*next, *greedy).write();
}
