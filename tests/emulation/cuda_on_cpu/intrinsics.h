// The words of CUDA C++ that kernels here use: qualifiers, indices, barriers, exchanges within a warp, atomics.
#pragma once
#include <cmath>
#include <type_traits>

#include "schedule.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

#define threadIdx (cuda_on_cpu::block->current->index)
#define blockIdx (cuda_on_cpu::block->index)
#define blockDim (cuda_on_cpu::block->size)
#define gridDim (cuda_on_cpu::block->grid)

#define __syncthreads() cuda_on_cpu::wait(cuda_on_cpu::State::kAtBlockBarrier, 0, __LINE__)
#define __syncwarp(...) cuda_on_cpu::WarpBarrier{__LINE__}(__VA_ARGS__)
#define __shfl_sync(mask, value, source) cuda_on_cpu::shuffle_lanes(mask, value, source, __LINE__)
#define __shfl_xor_sync(mask, value, bits) cuda_on_cpu::shuffle_lanes(mask, value, cuda_on_cpu::lane() ^ (bits), __LINE__)
#define __shfl_up_sync(mask, value, by) cuda_on_cpu::shuffle_lanes(mask, value, cuda_on_cpu::lane_at(-int(by)), __LINE__)
#define __shfl_down_sync(mask, value, by) cuda_on_cpu::shuffle_lanes(mask, value, cuda_on_cpu::lane_at(by), __LINE__)
#define __ballot_sync(mask, condition) cuda_on_cpu::ballot(mask, condition, __LINE__)
#define __any_sync(mask, condition) (cuda_on_cpu::ballot(mask, condition, __LINE__) != 0)
#define __all_sync(mask, condition) (cuda_on_cpu::ballot(mask, !(condition), __LINE__) == 0)

namespace cuda_on_cpu {

inline int lane() { return block->current->lane; }

// The lane at a distance from this one; this one, where there is none.
inline int lane_at(int distance) { return unsigned(lane() + distance) < kWarp ? lane() + distance : lane(); }

inline unsigned char* shared_memory() { return block->shared; }

struct WarpBarrier {
  int line;
  void operator()(unsigned mask = kAllLanes) const { wait(State::kAtWarpBarrier, mask, line); }
};

// Puts `value` where the lanes of `mask` see it, waits for theirs, and returns what `read` makes of the slots.
template <class T, class Read>
auto exchange(unsigned mask, const T& value, int line, Read read) {
  static_assert(sizeof(T) <= sizeof Boards::slot[0][0] && std::is_trivially_copyable_v<T>);
  Thread& self = *block->current;
  Boards& boards = block->boards[self.warp];
  auto& board = boards.slot[mask == kAllLanes ? self.turn++ & 1 : 2];
  memcpy(board[self.lane], &value, sizeof value);
  WarpBarrier{line}(mask);
  const auto result = read([&board](int lane) -> const T& { return *reinterpret_cast<const T*>(board[lane]); });
  if (mask != kAllLanes) WarpBarrier{line}(mask);
  return result;
}

template <class T>
T shuffle_lanes(unsigned mask, T value, int source, int line) {
  return exchange(mask, value, line, [=](auto slot) { return slot(source & 31); });
}

inline unsigned ballot(unsigned mask, bool condition, int line) {
  const Thread& self = *block->current;
  unsigned live = 0;
  for (const Thread& thread : block->threads)
    if (thread.warp == self.warp && thread.state != State::kDone) live |= 1u << thread.lane;
  return exchange(mask, condition, line, [=](auto slot) {
    unsigned votes = 0;
    for (int lane = 0; lane < kWarp; lane++)
      if ((mask & live) >> lane & 1) votes |= unsigned(slot(lane)) << lane;
    return votes;
  });
}

}  // namespace cuda_on_cpu

inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

template <class T>
T __ldg(const T* address) { return *address; }

template <class T>
T __ldcg(const T* address) { return *address; }

// Picks four of the eight bytes of (high, low): one selector digit per byte of the result.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; i++) picked |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return picked;
}
