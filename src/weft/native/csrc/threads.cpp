// The OpenMP threads of this process, torch's included: how many, and how they wait at barriers.
//
// libgomp spins for GOMP_SPINCOUNT iterations before a thread sleeps, which is read once. But while
// it manages more threads than there are CPUs, it spins for 100 iterations (2 us) only. A thread
// with a team of its own, which sleeps, is therefore a switch between the two.
#include <omp.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "abi.h"

namespace weft {
namespace {

struct Throttle {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t generation = 0;  // odd: on
};

// Never destroyed: destroying a condition variable waits for its sleepers.
Throttle& throttle() {
  static Throttle* const one = new Throttle;
  return *one;
}

void hold_team(int64_t generation) {
#pragma omp parallel num_threads(omp_get_num_procs() + 1)
  {
    asm volatile("");  // otherwise the compiler removes the region
  }
  std::unique_lock<std::mutex> lock(throttle().mutex);
  throttle().changed.wait(lock, [&] { return throttle().generation != generation; });
}

}  // namespace
}  // namespace weft

int64_t weft_set_num_threads(int64_t threads) {
  omp_set_num_threads(static_cast<int>(threads));
  return 0;
}

int64_t weft_set_throttled(int64_t is_on) {
  return weft::guarded([&] {
    weft::Throttle& one = weft::throttle();
    const std::lock_guard<std::mutex> lock(one.mutex);
    if (one.generation % 2 == (is_on != 0)) return int64_t{0};
    const int64_t generation = one.generation + 1;
    if (is_on) std::thread(weft::hold_team, generation).detach();
    one.generation = generation;
    one.changed.notify_all();
    return int64_t{0};
  });
}
