// One decode step of a batch: one token of each sequence in, its top-k next tokens out.
#pragma once

#include "abi.h"

namespace weft {

// Returns the number of ids before the first one that is out of range; if it is not all of them,
// nothing else was computed.
int64_t decode_step(const DecoderWeights& decoder, const DecodeStep& step);

}  // namespace weft
