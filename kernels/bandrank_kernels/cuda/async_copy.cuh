// Copies from global to shared memory that go on behind the thread's back (sm_80 and later).
//
// A thread's copies are counted in groups, some of which may be empty. After a wait its own copies are there; what other
// threads copied is there behind a barrier.

// 16 bytes, or as many zeros if they are not wanted: nothing is read then.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted) {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::copy_async(to, from, 16, wanted);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
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

// Until all groups but the last `kGroups` are there.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::wait_for_copies(kGroups);
#else
  asm volatile("cp.async.wait_group %0;" :: "n"(kGroups) : "memory");
#endif
}
