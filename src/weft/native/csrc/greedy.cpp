// Greedy decoding of a batch, step after step, until each sequence has ended.
//
// `group` sequences are active at a time, and when one ends the next is admitted: their keys and
// values stay in the processor's caches from step to step, while those of all sequences together
// would be read from memory each time.
#include <algorithm>
#include <vector>

#include "decode_step.h"

namespace weft {

namespace {

// A sequence that is being decoded, and its number of steps so far.
struct ActiveSequence {
  int64_t index, num_steps;
};

// Page tables and lengths of the active sequences.
struct GatheredTables {
  std::vector<int32_t> starts, lengths, table;

  void gather(const PagedAttentionCall& from, const std::vector<ActiveSequence>& active,
              const int32_t* offsets, PagedAttentionCall& to) {
    const int64_t P = from.table_stride;
    starts.clear(), lengths.clear(), table.clear();
    for (const ActiveSequence& sequence : active) {
      const int64_t growth =
          from.is_causal ? sequence.num_steps : 0;  // keys of cross-attention are constant
      starts.push_back(from.starts[sequence.index] + growth);
      lengths.push_back(from.lengths[sequence.index] + growth);
      table.insert(table.end(), from.table + sequence.index * P,
                   from.table + (sequence.index + 1) * P);
    }
    to.starts = starts.data(), to.lengths = lengths.data(), to.table = table.data();
    to.offsets = offsets, to.sequences = active.size();
  }
};

class GreedyLoop {
 public:
  GreedyLoop(const DecoderWeights& decoder, const GreedyCall& call) : decoder(decoder), call(call) {
    for (int64_t i = 0; i < call.step.num_passes; i++) passes.push_back(*call.step.passes[i]);
    for (LayerPass& pass : passes) pass_pointers.push_back(&pass);
    self.resize(passes.size()), cross.resize(passes.size());
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
    for (; next_waiting < call.sequences && static_cast<int64_t>(active.size()) < call.group;
         next_waiting++)
      if (call.limits[next_waiting] > 0)
        active.push_back({next_waiting, 0}), ids.push_back(call.ids[next_waiting]);
  }

  bool forward() {
    const int64_t rows = active.size();
    offsets.resize(rows + 1), values.resize(rows), top_ids.resize(rows), sums.resize(rows);
    for (int64_t n = 0; n <= rows; n++) offsets[n] = n;
    for (size_t i = 0; i < passes.size(); i++) {
      const LayerPass& all = *call.step.passes[i];
      self[i].gather(all.self, active, offsets.data(), passes[i].self);
      if (all.cross.sequences > 0)
        cross[i].gather(all.cross, active, offsets.data(), passes[i].cross);
      passes[i].rows = rows;
    }
    DecodeStep step = call.step;
    step.passes = pass_pointers.data(), step.ids = ids.data(), step.k = 1;
    step.top_values = values.data(), step.top_ids = top_ids.data();
    step.log_sum_exp = sums.data();
    return decode_step(decoder, step) == rows;
  }

  // Appends the tokens and removes sequences that have ended or reached their limit.
  void append() {
    size_t kept = 0;
    for (size_t n = 0; n < active.size(); n++) {
      auto [index, done] = active[n];
      const int64_t token = top_ids[n];
      call.tokens[index * call.stride + done++] = token;
      double& score = call.scores[index];
      score += static_cast<double>(values[n]) - sums[n];
      const bool is_over = token == call.ends[index] || !(score > -__builtin_inf());
      if (!is_over && done < call.limits[index]) active[kept] = {index, done}, ids[kept++] = token;
    }
    active.resize(kept), ids.resize(kept);
  }

  const DecoderWeights& decoder;
  const GreedyCall& call;
  int64_t next_waiting = 0;  // the first sequence that has not started
  std::vector<ActiveSequence> active;
  std::vector<LayerPass> passes;
  std::vector<LayerPass*> pass_pointers;
  std::vector<GatheredTables> self, cross;
  std::vector<int64_t> ids, top_ids;
  std::vector<int32_t> offsets;
  std::vector<float> values;
  std::vector<double> sums;
};

}  // namespace
}  // namespace weft

int64_t weft_greedy(const WeftDecoder* decoder, const WeftGreedy* call) {
  return weft::guarded([&] { return weft::GreedyLoop(*decoder, *call).run(); });
}
