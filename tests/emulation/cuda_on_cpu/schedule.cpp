// Runs a grid: blocks one after another in a random order, the threads of a block as fibers.
//
// Two schedules, because each hides other mistakes. Depth first: one warp runs to its next block barrier before another
// starts, so a missing __syncthreads shows at once. Round robin: every warp makes one step in turn. Lanes and warps are
// taken in random order in both. Shared memory is filled with 0xFF (NaN) before each block.
//
// A barrier that not all threads reach, or that they reach at different lines, ends the launch with a message.
//
// Compiled once: it takes longer than most kernels.
#include "schedule.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace cuda_on_cpu {

constexpr int kGuardBytes = 256;  // behind shared memory; a write there is an error

Block* block = nullptr;
static std::string error;

uint64_t random_number() {
  uint64_t x = block->random_state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return block->random_state = x;
}

template <class T>
static void shuffle(std::vector<T>& things) {
  for (size_t i = things.size(); i > 1; i--) std::swap(things[i - 1], things[random_number() % i]);
}

void wait(State state, unsigned mask, int line) {
  Thread& self = *block->current;
  self.state = state;
  self.mask = mask;
  self.line = line;
  switch_context(self.context, block->scheduler);
}

static void thread_main() {
  block->kernel();
  wait(State::kDone, 0, 0);
  abort();  // a thread that is done is never resumed
}

static bool fail(const char* format, ...) {
  char text[400];
  const uint3 b = block->index;
  const int length = snprintf(text, sizeof text, "block (%u, %u, %u): ", b.x, b.y, b.z);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + length, sizeof text - length, format, arguments);
  va_end(arguments);
  error = text;
  return false;
}

// The lanes of one warp, in the order in which they run next.
struct Warp {
  std::vector<Thread*> lanes;

  bool run_ready() {
    bool ran = false;
    std::rotate(lanes.begin(), lanes.begin() + random_number() % lanes.size(), lanes.end());
    for (Thread* thread : lanes) {
      if (thread->state != State::kReady) continue;
      block->current = thread;
      switch_context(block->scheduler, thread->context);
      ran = true;
    }
    return ran;
  }

  // Lets go the lanes of a warp barrier that all its live lanes have reached.
  bool release() {
    for (const Thread* thread : lanes)
      if (thread->state == State::kAtWarpBarrier && release(thread->mask, thread->line)) return true;
    return false;
  }

  bool release(unsigned mask, int line) {
    unsigned waiting = 0, live = 0;
    for (const Thread* thread : lanes) {
      const unsigned bit = 1u << thread->lane;
      if (thread->state != State::kDone) live |= bit;
      if (thread->state == State::kAtWarpBarrier && thread->mask == mask && thread->line == line) waiting |= bit;
    }
    if (waiting != (mask & live)) return false;
    for (Thread* thread : lanes)
      if (waiting >> thread->lane & 1) thread->state = State::kReady;
    return true;
  }
};

// Lets go a block barrier that all live threads have reached. False, with a message, if they never will.
static bool release_block(bool& done) {
  const Thread *at_block = nullptr, *at_warp = nullptr, *elsewhere = nullptr;
  for (const Thread& thread : block->threads) {
    if (thread.state == State::kAtWarpBarrier) at_warp = &thread;
    if (thread.state != State::kAtBlockBarrier) continue;
    if (at_block && at_block->line != thread.line) elsewhere = &thread;
    at_block = &thread;
  }
  if (at_warp)
    return fail("thread %u waits for lanes %08x at line %d, and not all of them come", at_warp->index.x, at_warp->mask,
                at_warp->line);
  if (elsewhere)
    return fail("__syncthreads at line %d by thread %u and at line %d by thread %u", at_block->line, at_block->index.x,
                elsewhere->line, elsewhere->index.x);
  done = !at_block;
  for (Thread& thread : block->threads)
    if (thread.state == State::kAtBlockBarrier) thread.state = State::kReady;
  return true;
}

static bool run_block(size_t shared_bytes) {
  memset(block->shared, 0xff, shared_bytes + kGuardBytes);
  std::vector<Warp> warps(block->boards.size());
  for (Thread& thread : block->threads) {
    thread.state = State::kReady;
    thread.turn = 0;
    thread.copies.assign(1, {});
    prepare(thread.context, thread.stack, thread_main);
    warps[thread.warp].lanes.push_back(&thread);
  }
  for (bool done = false; !done;) {
    bool progress = false;
    shuffle(warps);
    for (Warp& warp : warps) {
      bool ran = true;
      while (ran) {
        ran = warp.run_ready();
        ran |= warp.release();
        progress |= ran;
        if (block->schedule == Schedule::kRoundRobin) break;
      }
    }
    if (!progress && !release_block(done)) return false;
  }
  for (int i = 0; i < kGuardBytes; i++)
    if (block->shared[shared_bytes + i] != 0xff) return fail("wrote %d bytes behind shared memory", i);
  return true;
}

bool run_grid(dim3 grid, dim3 size, size_t shared_bytes, Schedule schedule, uint64_t seed,
                     std::function<void()> kernel) {
  static std::vector<void*> stacks;
  Block here;
  block = &here;
  here.grid = grid;
  here.size = size;
  here.schedule = schedule;
  here.random_state = (seed + 1) * 0x9e3779b97f4a7c15ull;
  here.kernel = std::move(kernel);
  const int num_threads = size.x * size.y * size.z;
  while (static_cast<int>(stacks.size()) < num_threads) stacks.push_back(new_stack());
  here.threads.resize(num_threads);
  here.boards.resize((num_threads + kWarp - 1) / kWarp);
  for (unsigned i = 0; i < here.threads.size(); i++) {
    Thread& thread = here.threads[i];
    thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    thread.lane = i % kWarp;
    thread.warp = i / kWarp;
    thread.stack = stacks[i];
  }
  // Not from a vector: its end would not be where the sanitizer sees a block's shared memory end.
  here.shared = static_cast<unsigned char*>(aligned_alloc(kGuardBytes, (shared_bytes / kGuardBytes + 2) * kGuardBytes));
  std::vector<uint64_t> order(static_cast<uint64_t>(grid.x) * grid.y * grid.z);
  for (uint64_t i = 0; i < order.size(); i++) order[i] = i;
  shuffle(order);
  bool good = true;
  for (uint64_t i : order) {
    here.index = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                  static_cast<unsigned>(i / (static_cast<uint64_t>(grid.x) * grid.y))};
    if (!(good = run_block(shared_bytes))) break;
  }
  free(here.shared);
  block = nullptr;
  return good;
}

bool refuse(size_t num_arguments) {
  error = "the kernel takes " + std::to_string(num_arguments) + " arguments";
  return false;
}

}  // namespace cuda_on_cpu

extern "C" const char* launch_error() { return cuda_on_cpu::error.c_str(); }
