// Lanes written on, pass after pass, each with the best token behind its last one, until it ends.
//
// Lanes go in groups: the keys and values of a group stay in the processor's caches from pass to
// pass, where those of all lanes together would come from memory each time.
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

// Rows of a table that are read now.
struct Gathered {
  std::vector<int32_t> starts, lengths, table;

  void take(const PagedCall& from, const std::vector<int64_t>& lanes, int64_t further,
            const int32_t* offsets, PagedCall& to) {
    const int64_t P = from.table_stride, grown = from.is_causal ? further : 0;
    starts.clear(), lengths.clear(), table.clear();
    for (const int64_t lane : lanes) {
      starts.push_back(from.starts[lane] + grown);
      lengths.push_back(from.lengths[lane] + grown);
      table.insert(table.end(), from.table + lane * P, from.table + (lane + 1) * P);
    }
    to.starts = starts.data(), to.lengths = lengths.data(), to.table = table.data();
    to.offsets = offsets, to.sequences = lanes.size();
  }
};

// Passes over the lanes of one group.
class Group {
 public:
  Group(const Next& next, const Greedy& greedy) : next(next), greedy(greedy) {
    for (int64_t i = 0; i < greedy.call.num_passes; i++) passes.push_back(*greedy.call.passes[i]);
    for (LayerPass& pass : passes) places.push_back(&pass);
    own.resize(passes.size()), cross.resize(passes.size());
  }

  // False: a token has no row in the word table.
  bool write(int64_t begin, int64_t end) {
    lanes.clear(), ids.clear();
    for (int64_t lane = begin; lane < end; lane++)
      if (greedy.limits[lane] > 0) lanes.push_back(lane), ids.push_back(greedy.ids[lane]);
    for (int64_t pass = 0; !lanes.empty(); pass++) {
      if (!run(pass)) return false;
      choose(pass);
    }
    return true;
  }

 private:
  bool run(int64_t pass) {
    const int64_t rows = lanes.size();
    offsets.resize(rows + 1), values.resize(rows), found.resize(rows), sums.resize(rows);
    for (int64_t n = 0; n <= rows; n++) offsets[n] = n;
    for (size_t i = 0; i < passes.size(); i++) {
      const LayerPass& all = *greedy.call.passes[i];
      own[i].take(all.own, lanes, pass, offsets.data(), passes[i].own);
      if (all.cross.sequences > 0)
        cross[i].take(all.cross, lanes, pass, offsets.data(), passes[i].cross);
      passes[i].rows = rows;
    }
    NextCall call = greedy.call;
    call.passes = places.data(), call.ids = ids.data(), call.count = 1;
    call.values = values.data(), call.found = found.data(), call.sums = sums.data();
    return find_next(next, call) == rows;
  }

  // Who has ended or comes to its limit leaves.
  void choose(int64_t pass) {
    size_t kept = 0;
    for (size_t n = 0; n < lanes.size(); n++) {
      const int64_t lane = lanes[n], token = found[n];
      greedy.tokens[lane * greedy.stride + pass] = token;
      double& score = greedy.scores[lane];
      score += static_cast<double>(values[n]) - sums[n];
      const bool goes = token != greedy.ends[lane] && score > -__builtin_inf();
      if (goes && pass + 1 < greedy.limits[lane]) lanes[kept] = lane, ids[kept++] = token;
    }
    lanes.resize(kept), ids.resize(kept);
  }

  const Next& next;
  const Greedy& greedy;
  std::vector<LayerPass> passes;
  std::vector<LayerPass*> places;
  std::vector<Gathered> own, cross;
  std::vector<int64_t> lanes, ids, found;
  std::vector<int32_t> offsets;
  std::vector<float> values;
  std::vector<double> sums;
};

}  // namespace
}  // namespace weft

EXPORT int64_t weft_greedy_size() { return sizeof(weft::Greedy); }

// `done`: how many lanes were written on; where it is not all, a token has no row in the word table.
EXPORT void weft_greedy(const weft::Next* next, const weft::Greedy* greedy, int64_t* done) {
  weft::Group group(*next, *greedy);
  for (*done = 0; *done < greedy->lanes;) {
    const int64_t end = std::min(*done + greedy->group, greedy->lanes);
    if (!group.write(*done, end)) return;
    *done = end;
  }
}
