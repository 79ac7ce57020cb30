// y_NO = x_NI W_OI^T + bias_O, batch-invariant. Every element of y is one chain of fused
// multiply-adds over i = 0, 1, 2, ..., starting at 0; the bias is added last.
//
// A row of y therefore depends on its own row of x alone: not on the number of rows in the call,
// the blocking or the threads. The usual blocked product (Goto 2008) sums each block separately;
// here the next block of inputs continues the chain stored in y. Matrices with int8 activations use
// int8_gemm.h.
#include <omp.h>

#include <algorithm>

#include "int8_gemm.h"
#include "layer_ops.h"
#include "panels.h"

namespace weft {
namespace {

constexpr int64_t ROW_BLOCK = 40 * PANEL_ROWS;  // rows whose inputs stay in the L2 cache
// Inputs of a panel that are read again for each of those rows, from the L2 cache, which is fast
// enough. Blocks that fit into L1 would read and write y more often.
constexpr int64_t INPUT_BLOCK = 768;
constexpr int64_t MIN_PARALLEL_WORK = 1 << 16;  // multiply-adds; fewer are faster on one thread

using Call = LinearCall;

// The outputs of `num` panels from `first` on: their offset in a row of y, and which are requested.
struct OutputRange {
  OutputRange(const Call& call, int64_t first, int64_t num)
      : offset(first * PANEL_WIDTH - call.begin),
        begin(std::max<int64_t>(0, -offset)),
        end(std::min(num * PANEL_WIDTH, call.end - first * PANEL_WIDTH)),
        is_complete(begin == 0 && end == num * PANEL_WIDTH) {}
  int64_t offset, begin, end;
  bool is_complete;
};

void add_bias(const Call& call, const OutputRange& range, float* y, int64_t first, int64_t rows) {
  if (call.bias == nullptr) return;
  const float* bias = call.bias + first * PANEL_WIDTH;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t o = range.begin; o < range.end; o++) y[row * call.y_stride + o] += bias[o];
}

// Runs compute(y, y_stride) on y, or on a copy if only a part of the panel is requested.
template <class Compute>
void with_output(const Call& call, const OutputRange& range, int64_t row, int64_t rows,
                 Compute compute) {
  float* y = call.y + row * call.y_stride + range.offset;
  if (range.is_complete) return compute(y, call.y_stride);
  float copy[PANEL_ROWS * PANEL_WIDTH * 4] = {};
  constexpr int64_t stride = PANEL_WIDTH * 4;
  const size_t bytes = sizeof(float) * (range.end - range.begin);
  for (int64_t r = 0; r < rows; r++)
    std::memcpy(copy + r * stride + range.begin, y + r * call.y_stride + range.begin, bytes);
  compute(copy, stride);
  for (int64_t r = 0; r < rows; r++)
    std::memcpy(y + r * call.y_stride + range.begin, copy + r * stride + range.begin, bytes);
}

// All rows of a block times inputs begin..end of one panel, at most PANEL_ROWS rows at a time. The
// bias of a complete panel is added while the sums are in registers.
void multiply_block(const Call& call, int64_t panel, const float* weights, int64_t row,
                    int64_t rows, int64_t begin, int64_t end) {
  const OutputRange range(call, panel, 1);
  const int64_t pieces = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
  const bool is_last = end == call.weight->inputs, is_added = is_last && range.is_complete;
  const float* bias = is_added && call.bias != nullptr ? call.bias + panel * PANEL_WIDTH : nullptr;
  for (int64_t piece = 0; piece < pieces; piece++) {
    const int64_t first = row + rows * piece / pieces, last = row + rows * (piece + 1) / pieces;
    with_output(call, range, first, last - first, [&](float* y, int64_t y_stride) {
      const float* x = call.x + first * call.x_stride + begin;
      gemm_kernel(last - first)(x, call.x_stride, weights, 0, end - begin, y, y_stride, begin == 0,
                                bias);
    });
  }
  if (is_last && !is_added)
    add_bias(call, range, call.y + row * call.y_stride + range.offset, panel, rows);
}

// Several rows: one panel after another, inputs in blocks, so that a block of a panel is loaded
// once for all rows.
void gemm(const Call& call, int64_t first, int64_t last, int64_t row, int64_t rows) {
  const PackedMatrix& weight = *call.weight;
  alignas(64) float scratch[INPUT_BLOCK * PANEL_WIDTH];
  const int64_t block = rows > PANEL_ROWS || weight.bits != 32 ? INPUT_BLOCK : weight.inputs;
  for (int64_t begin = 0; begin < weight.inputs; begin += block) {
    const int64_t end = std::min(begin + block, weight.inputs);
    for (int64_t panel = first; panel < last; panel++) {
      const float* weights = weight.bits == 32 ? panel_floats(weight, panel, begin) : scratch;
      if (weight.bits == 8) dequantize_panel<8>(weight, panel, begin, end, scratch);
      if (weight.bits == 4) dequantize_panel<4>(weight, panel, begin, end, scratch);
      multiply_block(call, panel, weights, row, rows, begin, end);
    }
  }
}

// One row times PANELS panels: enough independent chains to hide the latency of fma.
template <int PANELS>
void gemv(const Call& call, int64_t panel) {
  const PackedMatrix& weight = *call.weight;
  const OutputRange range(call, panel, PANELS);
  with_output(call, range, 0, 1, [&](float* y, int64_t) {
    if (weight.bits == 8) return quantized_gemv<8, PANELS>(call.x, weight, panel, y);
    if (weight.bits == 4) return quantized_gemv<4, PANELS>(call.x, weight, panel, y);
    multiply<1, PANELS>(call.x, 0, panel_floats(weight, panel, 0), weight.inputs * PANEL_WIDTH,
                        weight.inputs, y, 0, true, nullptr);
  });
  add_bias(call, range, call.y + range.offset, panel, 1);
}

// Several rows with int8 activations: all inputs at once, because quantized rows are short.
void int8_panels(const Call& call, const Int8Rows& int8_rows, int64_t first, int64_t last,
                 int64_t row, int64_t rows) {
  const int64_t pieces = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
  for (int64_t panel = first; panel < last; panel++) {
    const OutputRange range(call, panel, 1);
    for (int64_t piece = 0; piece < pieces; piece++) {
      const int64_t from = row + rows * piece / pieces, to = row + rows * (piece + 1) / pieces;
      with_output(call, range, from, to - from, [&](float* y, int64_t y_stride) {
        int8_gemm_panel(*call.weight, panel, int8_rows, from, to - from, y, y_stride);
      });
    }
    add_bias(call, range, call.y + row * call.y_stride + range.offset, panel, rows);
  }
}

template <int PANELS>
void int8_gemv(const Call& call, const Int8Rows& int8_rows, int64_t panel) {
  constexpr int V = PANELS * PANEL_VECTORS;
  const PackedMatrix& weight = *call.weight;
  const OutputRange range(call, panel, PANELS);
  with_output(call, range, 0, 1, [&](float* y, int64_t) {
    const auto multiply = weight.bits == 4 ? int8_gemm<4, 1, V> : int8_gemm<8, 1, V>;
    multiply(weight, panel * PANEL_VECTORS, int8_rows, 0, y, 0);
  });
  add_bias(call, range, call.y + range.offset, panel, 1);
}

// First row of block `block` of `blocks`, a multiple of PANEL_ROWS.
int64_t row_block_start(int64_t rows, int64_t block, int64_t blocks) {
  return block == blocks ? rows : rows * block / blocks / PANEL_ROWS * PANEL_ROWS;
}

void int8_panel_range(const Call& call, int64_t first, int64_t last, int64_t row, int64_t rows) {
  const Int8Rows& int8_rows = *call.int8_rows;
  if (call.rows > 1) return int8_panels(call, int8_rows, first, last, row, rows);
  int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) int8_gemv<2>(call, int8_rows, panel);
  for (; panel < last; panel++) int8_gemv<1>(call, int8_rows, panel);
}

void panel_range(const Call& call, int64_t first, int64_t last, int64_t row, int64_t rows) {
  if (call.weight->int8_activations) return int8_panel_range(call, first, last, row, rows);
  if (call.rows > 1) return gemm(call, first, last, row, rows);
  int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) gemv<2>(call, panel);
  for (; panel < last; panel++) gemv<1>(call, panel);
}

}  // namespace

void linear_single_thread(const LinearCall& call) {
  panel_range(call, call.begin / PANEL_WIDTH, (call.end + PANEL_WIDTH - 1) / PANEL_WIDTH, 0,
              call.rows);
}

void linear_team(const LinearCall& call, int64_t threads, TeamError& error) {
  const int64_t first = call.begin / PANEL_WIDTH,
                panels = (call.end + PANEL_WIDTH - 1) / PANEL_WIDTH - first;
  if (call.rows == 0 || panels <= 0) return;
  const int64_t row_blocks = (call.rows + ROW_BLOCK - 1) / ROW_BLOCK;
  // an even number of panels per task (gemv takes two), and several tasks per thread for balance
  const int64_t tasks_per_row_block = std::max<int64_t>(1, 6 * threads / row_blocks);
  const int64_t panels_per_task = std::max<int64_t>(2, (panels / tasks_per_row_block + 1) / 2 * 2);
  const int64_t groups = (panels + panels_per_task - 1) / panels_per_task;
  // each thread quantizes the rows of its tasks: with two threads that is faster than a barrier
  static thread_local Int8Rows int8_rows;
  const bool is_quantized_here = call.weight->int8_activations && call.int8_rows == nullptr;
  int8_rows.invalidate();
  Call local = call;
  if (is_quantized_here) local.int8_rows = &int8_rows;
#pragma omp for schedule(dynamic, 1)
  for (int64_t task = 0; task < row_blocks * groups; task++) {
    const int64_t group = task % groups, block = task / groups;
    const int64_t row = row_block_start(call.rows, block, row_blocks);
    const int64_t end_row = row_block_start(call.rows, block + 1, row_blocks);
    const int64_t from = first + group * panels_per_task,
                  to = first + std::min(panels, (group + 1) * panels_per_task);
    error.run([&] {
      if (is_quantized_here) int8_rows.quantize(call, row, end_row - row);
      panel_range(local, from, to, row, end_row - row);
    });
  }
}

}  // namespace weft

int64_t weft_panel_width(void) { return weft::PANEL_WIDTH; }

int64_t weft_linear(const WeftPackedMatrix* matrix, const float* x, const float* bias, float* y,
                    int64_t rows, int64_t x_stride, int64_t y_stride, int64_t begin, int64_t end,
                    int64_t threads) {
  using namespace weft;
  const LinearCall call{matrix, x, bias, y, rows, x_stride, y_stride, begin, end};
  if (rows * (end - begin) * matrix->inputs < MIN_PARALLEL_WORK) threads = 1;
  TeamError error;
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
  linear_team(call, threads, error);
  return error.code();
}
