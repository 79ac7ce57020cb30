// y_NO = x_NI W_OI^T + bias_O. Every y is one chain of fused multiply-adds over i = 0, 1, 2, ...,
// begun at 0; the bias comes last.
//
// So a row of y depends on its own row of x alone: not on how many rows are in the call, how they
// are blocked or which thread has them. The textbook's blocked product (Goto 2008) sums per block;
// here a later block of inputs takes up the chain where the earlier one left it in y. Weights that
// ask for it get rounded inputs (rounded.h).
#include <omp.h>

#include <algorithm>

#include "panels.h"
#include "rounded.h"
#include "rows.h"

namespace weft {
namespace {

constexpr int64_t ROW_BLOCK = 40 * PANEL_ROWS;  // rows whose inputs stay in the second-level cache
// Inputs of a panel that are read again for each of those rows: from the second-level cache, which
// keeps up. Blocks small enough for the first level come to read and write y too often.
constexpr int64_t INPUT_BLOCK = 768;
constexpr int64_t LITTLE = 1 << 16;       // products that one thread does sooner than two

using Call = LinearCall;

// Outputs of panels first..first + num: where they lie in a row of y, and which of them are asked.
struct Place {
  Place(const Call& call, int64_t first, int64_t num)
      : offset(first * WIDTH - call.begin),
        begin(std::max<int64_t>(0, -offset)),
        end(std::min(num * WIDTH, call.end - first * WIDTH)),
        is_whole(begin == 0 && end == num * WIDTH) {}
  int64_t offset, begin, end;
  bool is_whole;
};

void add_bias(const Call& call, const Place& place, float* y, int64_t first, int64_t rows) {
  if (call.bias == nullptr) return;
  const float* bias = call.bias + first * WIDTH;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t o = place.begin; o < place.end; o++) y[row * call.y_stride + o] += bias[o];
}

// Runs compute(y, y_stride) on y itself, or on a copy where only a part of a panel is asked for.
template <class Compute>
void at_place(const Call& call, const Place& place, int64_t row, int64_t rows, Compute compute) {
  float* y = call.y + row * call.y_stride + place.offset;
  if (place.is_whole) return compute(y, call.y_stride);
  float copy[PANEL_ROWS * WIDTH * 4] = {};
  constexpr int64_t stride = WIDTH * 4;
  const size_t bytes = sizeof(float) * (place.end - place.begin);
  for (int64_t r = 0; r < rows; r++)
    std::memcpy(copy + r * stride + place.begin, y + r * call.y_stride + place.begin, bytes);
  compute(copy, stride);
  for (int64_t r = 0; r < rows; r++)
    std::memcpy(y + r * call.y_stride + place.begin, copy + r * stride + place.begin, bytes);
}

// All rows of a block times one panel's inputs begin..end, in pieces of at most PANEL_ROWS rows. The
// bias of a whole panel is added while the sums are in registers.
void multiply_block(const Call& call, int64_t panel, const float* weights, int64_t row,
                    int64_t rows, int64_t begin, int64_t end) {
  const Place place(call, panel, 1);
  const int64_t pieces = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
  const bool is_last = end == call.weight->inputs, is_added = is_last && place.is_whole;
  const float* bias = is_added && call.bias != nullptr ? call.bias + panel * WIDTH : nullptr;
  for (int64_t piece = 0; piece < pieces; piece++) {
    const int64_t first = row + rows * piece / pieces, last = row + rows * (piece + 1) / pieces;
    at_place(call, place, first, last - first, [&](float* y, int64_t y_stride) {
      const float* x = call.x + first * call.x_stride + begin;
      multiply_rows(last - first)(x, call.x_stride, weights, 0, end - begin, y, y_stride,
                                  begin == 0, bias);
    });
  }
  if (is_last && !is_added)
    add_bias(call, place, call.y + row * call.y_stride + place.offset, panel, rows);
}

// Many rows: panels one by one, inputs in blocks, so that a block of a panel serves all rows.
void many_rows(const Call& call, int64_t first, int64_t last, int64_t row, int64_t rows) {
  const Packed& weight = *call.weight;
  alignas(64) float scratch[INPUT_BLOCK * WIDTH];
  const int64_t block = rows > PANEL_ROWS || weight.bits != 32 ? INPUT_BLOCK : weight.inputs;
  for (int64_t begin = 0; begin < weight.inputs; begin += block) {
    const int64_t end = std::min(begin + block, weight.inputs);
    for (int64_t panel = first; panel < last; panel++) {
      const float* weights = weight.bits == 32 ? floats(weight, panel, begin) : scratch;
      if (weight.bits == 8) unpack_panel<8>(weight, panel, begin, end, scratch);
      if (weight.bits == 4) unpack_panel<4>(weight, panel, begin, end, scratch);
      multiply_block(call, panel, weights, row, rows, begin, end);
    }
  }
}

// One row times `PANELS` panels at once: enough chains to keep the multipliers busy.
template <int PANELS>
void one_row(const Call& call, int64_t panel) {
  const Packed& weight = *call.weight;
  const Place place(call, panel, PANELS);
  at_place(call, place, 0, 1, [&](float* y, int64_t) {
    if (weight.bits == 8) return multiply_packed<8, PANELS>(call.x, weight, panel, y);
    if (weight.bits == 4) return multiply_packed<4, PANELS>(call.x, weight, panel, y);
    multiply<1, PANELS>(call.x, 0, floats(weight, panel, 0), weight.inputs * WIDTH, weight.inputs,
                        y, 0, true, nullptr);
  });
  add_bias(call, place, call.y + place.offset, panel, 1);
}

// The same with rounded inputs: all inputs at once, for they are short.
void rounded_panels(const Call& call, const RoundedRows& rounded, int64_t first, int64_t last,
                    int64_t row, int64_t rows) {
  const int64_t pieces = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
  for (int64_t panel = first; panel < last; panel++) {
    const Place place(call, panel, 1);
    for (int64_t piece = 0; piece < pieces; piece++) {
      const int64_t from = row + rows * piece / pieces, to = row + rows * (piece + 1) / pieces;
      at_place(call, place, from, to - from, [&](float* y, int64_t y_stride) {
        multiply_rounded_panel(*call.weight, panel, rounded, from, to - from, y, y_stride);
      });
    }
    add_bias(call, place, call.y + row * call.y_stride + place.offset, panel, rows);
  }
}

template <int PANELS>
void rounded_row(const Call& call, const RoundedRows& rounded, int64_t panel) {
  constexpr int V = PANELS * PANEL_VECTORS;
  const Packed& weight = *call.weight;
  const Place place(call, panel, PANELS);
  at_place(call, place, 0, 1, [&](float* y, int64_t) {
    const auto multiply = weight.bits == 4 ? multiply_rounded<4, 1, V> : multiply_rounded<8, 1, V>;
    multiply(weight, panel * PANEL_VECTORS, rounded, 0, y, 0);
  });
  add_bias(call, place, call.y + place.offset, panel, 1);
}

// Where block `block` of `blocks` begins, at a multiple of PANEL_ROWS.
int64_t border(int64_t rows, int64_t block, int64_t blocks) {
  return block == blocks ? rows : rows * block / blocks / PANEL_ROWS * PANEL_ROWS;
}

void some_rounded(const Call& call, int64_t first, int64_t last, int64_t row, int64_t rows) {
  const RoundedRows& rounded = *call.rounded;
  if (call.rows > 1) return rounded_panels(call, rounded, first, last, row, rows);
  int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) rounded_row<2>(call, rounded, panel);
  for (; panel < last; panel++) rounded_row<1>(call, rounded, panel);
}

void some_panels(const Call& call, int64_t first, int64_t last, int64_t row, int64_t rows) {
  if (call.weight->is_rounded) return some_rounded(call, first, last, row, rows);
  if (call.rows > 1) return many_rows(call, first, last, row, rows);
  int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) one_row<2>(call, panel);
  for (; panel < last; panel++) one_row<1>(call, panel);
}

}  // namespace

void linear_part(const LinearCall& call) {
  some_panels(call, call.begin / WIDTH, (call.end + WIDTH - 1) / WIDTH, 0, call.rows);
}

void linear_rows(const LinearCall& call, int64_t threads) {
  const int64_t first = call.begin / WIDTH, panels = (call.end + WIDTH - 1) / WIDTH - first;
  if (call.rows == 0 || panels <= 0) return;
  const int64_t row_blocks = (call.rows + ROW_BLOCK - 1) / ROW_BLOCK;
  // an even number of panels to a task, and some tasks to a thread so that none waits for long
  const int64_t wanted = std::max<int64_t>(1, 6 * threads / row_blocks);
  const int64_t each = std::max<int64_t>(2, (panels / wanted + 1) / 2 * 2);
  const int64_t groups = (panels + each - 1) / each;
  // each thread rounds the rows it meets: for two of them that is sooner done than one more barrier
  static thread_local RoundedRows own;
  const bool is_to_round = call.weight->is_rounded && call.rounded == nullptr;
  own.forget();
  Call mine = call;
  if (is_to_round) mine.rounded = &own;
#pragma omp for schedule(dynamic, 1)
  for (int64_t task = 0; task < row_blocks * groups; task++) {
    const int64_t group = task % groups, block = task / groups;
    const int64_t row = border(call.rows, block, row_blocks);
    const int64_t end_row = border(call.rows, block + 1, row_blocks);
    const int64_t from = first + group * each, to = first + std::min(panels, (group + 1) * each);
    if (is_to_round) own.cover(call, row, end_row - row);
    some_panels(mine, from, to, row, end_row - row);
  }
}

}  // namespace weft

EXPORT int64_t weft_packed_size() { return sizeof(weft::Packed); }
EXPORT int64_t weft_panel_width() { return weft::WIDTH; }

EXPORT void weft_linear(const weft::Packed* weight, const float* x, const float* bias, float* y,
                        int64_t rows, int64_t x_stride, int64_t y_stride, int64_t begin,
                        int64_t end, int64_t threads) {
  using namespace weft;
  const LinearCall call{weight, x, bias, y, rows, x_stride, y_stride, begin, end};
  if (rows * (end - begin) * weight->inputs < LITTLE) threads = 1;
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
  linear_rows(call, threads);
}
