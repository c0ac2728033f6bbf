// What a kernel sees of what runs it: threads, their block, barriers, a launch. schedule.cpp runs them.
#pragma once
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "fibers.h"
#include "vectors.h"

namespace cuda_on_cpu {

enum class Schedule { kDepthFirst, kRoundRobin };
enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

// To shared memory, asked for and not yet made.
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool real;  // zeros, if not
};

struct Thread {
  Context context;
  State state;
  uint3 index;
  int lane, warp;
  unsigned mask;  // of the warp barrier it waits at
  int line;       // of the barrier it waits at
  unsigned turn;  // counts exchanges of the whole warp
  void* stack;
  std::deque<std::vector<Copy>> copies;  // by groups, of which the last is open
};

// What the lanes of a warp show each other. Exchanges of all lanes use boards 0 and 1 in turn: who puts something on a
// board again has passed the exchange between, so everyone has read it. Exchanges of some lanes use board 2.
struct Boards {
  alignas(16) unsigned char slot[3][kWarp][64];
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Boards> boards;
  unsigned char* shared = nullptr;
  dim3 grid, size;
  uint3 index{};
  Context scheduler;
  Thread* current = nullptr;
  std::function<void()> kernel;
  Schedule schedule;
  uint64_t random_state;
};

extern Block* block;

uint64_t random_number();

// Stops a thread until what it waits for has happened.
void wait(State state, unsigned mask, int line);

// False, with a message, if the launch goes wrong.
bool run_grid(dim3 grid, dim3 size, size_t shared_bytes, Schedule schedule, uint64_t seed,
              std::function<void()> kernel);

// False, with a message: the kernel takes another number of arguments.
bool refuse(size_t num_arguments);

// Calls `kernel` with its arguments, each read from where `arguments` points to, in every thread of the grid.
template <class... Parameters, size_t... I>
bool launch(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>, const unsigned* grid,
            const unsigned* size, size_t shared_bytes, int schedule, uint64_t seed) {
  return run_grid({grid[0], grid[1], grid[2]}, {size[0], size[1], size[2]}, shared_bytes,
                  static_cast<Schedule>(schedule), seed,
                  [=] { kernel(*static_cast<Parameters*>(arguments[I])...); });
}

}  // namespace cuda_on_cpu

// One C function per kernel, for ctypes.
#define CUDA_ON_CPU_LAUNCHER(name, ...)                                                                               \
  template <class... Parameters>                                                                                      \
  static bool name##_typed(void (*kernel)(Parameters...), int num_arguments, void** arguments, const unsigned* grid,  \
                           const unsigned* size, size_t shared_bytes, int schedule, uint64_t seed) {                  \
    if (num_arguments != sizeof...(Parameters)) return cuda_on_cpu::refuse(sizeof...(Parameters));                    \
    return cuda_on_cpu::launch(kernel, arguments, std::index_sequence_for<Parameters...>{}, grid, size, shared_bytes, \
                               schedule, seed);                                                                       \
  }                                                                                                                   \
  extern "C" bool name(int num_arguments, void** arguments, const unsigned* grid, const unsigned* size,               \
                       size_t shared_bytes, int schedule, uint64_t seed) {                                            \
    return name##_typed(&__VA_ARGS__, num_arguments, arguments, grid, size, shared_bytes, schedule, seed);            \
  }
