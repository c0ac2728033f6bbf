// Asynchronous copies from global to shared memory (sm_80 and later).
//
// A thread's copies are counted in groups, some of which may be empty. After a wait a thread sees its copies;
// after a barrier it also sees those of other threads.

// Copies 16 bytes; if they are not real, writes 16 zeros and reads nothing.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool real) {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::copy_async(to, from, 16, real);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0) : "memory");
#endif
}

// Copies 16 bytes that will soon be read again, and which L1 therefore keeps.
__device__ __forceinline__ void copy_async_through_l1(void* to, const void* from) {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::copy_async(to, from, 16, true);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(shared_address(to)), "l"(from) : "memory");
#endif
}

// Ends a group.
__device__ __forceinline__ void commit_copies() {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all groups but the last `kGroups` have arrived.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::wait_for_copies(kGroups);
#else
  asm volatile("cp.async.wait_group %0;" :: "n"(kGroups) : "memory");
#endif
}
