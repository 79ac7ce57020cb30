// The parts of a layer on packed rows, each divided among the threads of the team that calls it.
//
// Called inside a parallel region, all threads of it must come; called outside, one thread does all
// of it. Each ends with a barrier. Results do not depend on the number of threads.
#pragma once

#include <vector>

#include "simd.h"

namespace weft {

struct Packed;     // panels.h
struct PagedCall;  // pages.h
class RoundedRows;  // rounded.h

// y_NO = x_NI W_OI^T + bias_O for outputs begin..end.
struct LinearCall {
  const Packed* weight;
  const float* x;
  const float* bias;
  float* y;
  int64_t rows, x_stride, y_stride, begin, end;
  const RoundedRows* rounded = nullptr;  // x, where it was rounded before
};
void linear_rows(const LinearCall& call, int64_t threads);
// The same by the thread that calls it alone: no team, no barrier.
void linear_part(const LinearCall& call);

// Mirrors NormStruct of structs.py.
struct Norm {
  const float *weight, *bias;  // null: 1 and 0
  int64_t is_centred;          // layernorm; else rmsnorm
  float eps, offset;           // the weight is the stored one plus `offset`
};
void norm_row(const Norm& norm, const float* x, float* y, int64_t size);

// act(x), or act(x) * up; both have the stride of x.
using Activate = void (*)(const float* x, const float* up, float* y, int64_t size);
Activate activation(int64_t kind);

// Queries begin..end (packed) of one sequence, and pieces whose rows are computed together.
struct Piece {
  int64_t sequence, begin, end;
};
using Block = std::vector<Piece>;
std::vector<Block> cut(const PagedCall& call);
void attend_blocks(const PagedCall& call, const std::vector<Block>& blocks, int64_t threads);

}  // namespace weft
