// The number of OpenMP threads of the calling thread's parallel regions, torch's included.
#include <omp.h>

#include "abi.h"

int64_t weft_set_num_threads(int64_t threads) {
  omp_set_num_threads(static_cast<int>(threads));
  return 0;
}
