// cp.async: a copy happens at any time from its call to the wait for its group; here at the one or the other, at random.
#pragma once
#include "schedule.h"

namespace cuda_on_cpu {

inline void complete(const Copy& copy) {
  if (copy.real)
    memcpy(copy.to, copy.from, copy.bytes);
  else
    memset(copy.to, 0, copy.bytes);
}

inline void copy_async(void* to, const void* from, size_t bytes, bool real) {
  const Copy copy{to, from, bytes, real};
  if (random_number() & 1)
    complete(copy);
  else
    block->current->copies.back().push_back(copy);
}

inline void commit_copies() { block->current->copies.emplace_back(); }

inline void wait_for_copies(size_t groups) {
  auto& copies = block->current->copies;  // the last group is still open
  for (; copies.size() > groups + 1; copies.pop_front())
    for (const Copy& copy : copies.front()) complete(copy);
}

}  // namespace cuda_on_cpu
