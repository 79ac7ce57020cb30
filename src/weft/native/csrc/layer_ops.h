// The operations that layer.cpp composes, on packed rows (one row per token).
//
// Those named "team" divide the work among the threads of the enclosing parallel region, all of
// which must call them, and end with a barrier; outside of a parallel region one thread does
// everything. Results do not depend on the number of threads.
#pragma once

#include <vector>

#include "abi.h"
#include "simd.h"

namespace weft {

class Int8Rows;  // int8_gemm.h

// y_NO = x_NI W_OI^T + bias_O for outputs begin..end (linear.cpp).
struct LinearCall {
  const PackedMatrix* weight;
  const float* x;
  const float* bias;
  float* y;
  int64_t rows, x_stride, y_stride, begin, end;
  const Int8Rows* int8_rows = nullptr;  // x, if it has been quantized already
};
void linear_team(const LinearCall& call, int64_t threads, TeamError& error);
// The same by the calling thread alone, without a barrier.
void linear_single_thread(const LinearCall& call);

// LayerNorm or RMSNorm of one row.
void norm_row(const NormWeights& norm, const float* x, float* y, int64_t size);

// act(x), or act(x) * up if `up` is not null.
using Activate = void (*)(const float* x, const float* up, float* y, int64_t size);
Activate activation(int64_t kind);

// Packed queries begin..end of one sequence; the spans of a block are computed together.
struct QuerySpan {
  int64_t sequence, begin, end;
};
using QueryBlock = std::vector<QuerySpan>;
std::vector<QueryBlock> split_queries(const PagedAttentionCall& call);
void attend_blocks(const PagedAttentionCall& call, const std::vector<QueryBlock>& blocks,
                   int64_t threads, TeamError& error);

}  // namespace weft
