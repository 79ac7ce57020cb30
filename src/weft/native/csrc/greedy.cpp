// Greedy decoding of a batch, step after step, until each sequence has ended.
//
// `group` sequences are active at a time, and when one ends the next is admitted: their keys and
// values stay in the processor's caches from step to step, while those of all sequences together
// would be read from memory each time.
#include <algorithm>
#include <vector>

#include "decode_step.h"

namespace weft {

// Greedy decoding of B sequences. Mirrors GreedyStruct of structs.py.
struct Greedy {
  NextCall call;  // passes of all sequences; ids, values, found and sums are set for each step
  int64_t lanes, group, stride;
  const int64_t* ids;     // last token of each sequence
  const int64_t* ends;    // end token of each; negative: none
  const int64_t* limits;  // maximum number of steps of each
  double* scores;         // the log-probability of each token is added
  int64_t* tokens;        // [B, stride]: the generated tokens
};

namespace {

// A sequence that is being decoded, and its number of steps so far.
struct ActiveSequence {
  int64_t lane, passes;
};

// Page tables and lengths of the active sequences.
struct GatheredTables {
  std::vector<int32_t> starts, lengths, table;

  void gather(const PagedCall& from, const std::vector<ActiveSequence>& active,
              const int32_t* offsets, PagedCall& to) {
    const int64_t P = from.table_stride;
    starts.clear(), lengths.clear(), table.clear();
    for (const ActiveSequence& sequence : active) {
      const int64_t growth =
          from.is_causal ? sequence.passes : 0;  // keys of cross-attention are constant
      starts.push_back(from.starts[sequence.lane] + growth);
      lengths.push_back(from.lengths[sequence.lane] + growth);
      table.insert(table.end(), from.table + sequence.lane * P,
                   from.table + (sequence.lane + 1) * P);
    }
    to.starts = starts.data(), to.lengths = lengths.data(), to.table = table.data();
    to.offsets = offsets, to.sequences = active.size();
  }
};

class GreedyLoop {
 public:
  GreedyLoop(const Next& next, const Greedy& greedy) : next(next), greedy(greedy) {
    for (int64_t i = 0; i < greedy.call.num_passes; i++) passes.push_back(*greedy.call.passes[i]);
    for (LayerPass& pass : passes) pass_pointers.push_back(&pass);
    own.resize(passes.size()), cross.resize(passes.size());
  }

  // Returns the number of sequences that have ended; fewer than all: an id was out of range.
  int64_t run() {
    for (admit(); !active.empty(); admit()) {
      if (!forward()) break;
      append();
    }
    return next_waiting - static_cast<int64_t>(active.size());
  }

 private:
  void admit() {
    for (; next_waiting < greedy.lanes && static_cast<int64_t>(active.size()) < greedy.group;
         next_waiting++)
      if (greedy.limits[next_waiting] > 0)
        active.push_back({next_waiting, 0}), ids.push_back(greedy.ids[next_waiting]);
  }

  bool forward() {
    const int64_t rows = active.size();
    offsets.resize(rows + 1), values.resize(rows), found.resize(rows), sums.resize(rows);
    for (int64_t n = 0; n <= rows; n++) offsets[n] = n;
    for (size_t i = 0; i < passes.size(); i++) {
      const LayerPass& all = *greedy.call.passes[i];
      own[i].gather(all.own, active, offsets.data(), passes[i].own);
      if (all.cross.sequences > 0)
        cross[i].gather(all.cross, active, offsets.data(), passes[i].cross);
      passes[i].rows = rows;
    }
    NextCall call = greedy.call;
    call.passes = pass_pointers.data(), call.ids = ids.data(), call.count = 1;
    call.values = values.data(), call.found = found.data(), call.sums = sums.data();
    return decode_step(next, call) == rows;
  }

  // Appends the tokens and removes sequences that have ended or reached their limit.
  void append() {
    size_t kept = 0;
    for (size_t n = 0; n < active.size(); n++) {
      auto [lane, done] = active[n];
      const int64_t token = found[n];
      greedy.tokens[lane * greedy.stride + done++] = token;
      double& score = greedy.scores[lane];
      score += static_cast<double>(values[n]) - sums[n];
      const bool is_over = token == greedy.ends[lane] || !(score > -__builtin_inf());
      if (!is_over && done < greedy.limits[lane]) active[kept] = {lane, done}, ids[kept++] = token;
    }
    active.resize(kept), ids.resize(kept);
  }

  const Next& next;
  const Greedy& greedy;
  int64_t next_waiting = 0;  // the first sequence that has not started
  std::vector<ActiveSequence> active;
  std::vector<LayerPass> passes;
  std::vector<LayerPass*> pass_pointers;
  std::vector<GatheredTables> own, cross;
  std::vector<int64_t> ids, found;
  std::vector<int32_t> offsets;
  std::vector<float> values;
  std::vector<double> sums;
};

}  // namespace
}  // namespace weft

EXPORT int64_t weft_greedy_size() { return sizeof(weft::Greedy); }

// `done`: the number of sequences that have ended; fewer than all: an id was out of range.
EXPORT void weft_greedy(const weft::Next* next, const weft::Greedy* greedy, int64_t* done) {
  *done = weft::GreedyLoop(*next, *greedy).run();
}
