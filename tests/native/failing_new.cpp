// operator new for LD_PRELOAD: while it is active, allocations are counted, and one of them fails.
#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<bool> is_active{false};
std::atomic<long> count{0}, failing{0};
}  // namespace

void* operator new(std::size_t size) {
  if (is_active && ++count == failing) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// Counts from 0 again; allocation `number` will fail, or none if it is 0.
extern "C" void fail_at(long number) { count = 0, failing = number; }
extern "C" void set_active(int value) { is_active = value != 0; }
extern "C" long allocations() { return count; }
