// A fiber: a stack and the instruction at which it stopped. Every CUDA thread of a block is one.
//
// On x86-64 a switch is a dozen instructions. Elsewhere, and with -DCUDA_ON_CPU_UCONTEXT, it is ucontext, which makes a
// system call at each switch and is some ten times slower.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>

#if !defined(__x86_64__) && !defined(CUDA_ON_CPU_UCONTEXT)
#define CUDA_ON_CPU_UCONTEXT
#endif
#ifdef CUDA_ON_CPU_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_on_cpu {

constexpr size_t kStackBytes = 256 * 1024;  // the sanitizers need most of it; pages that are not touched cost nothing

inline void* new_stack() {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) abort();
  return stack;
}

#ifdef CUDA_ON_CPU_UCONTEXT

struct Context {
  ucontext_t state;
};

inline void prepare(Context& context, void* stack, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = kStackBytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

#else

struct Context {
  void* stack_pointer;
};

// Weak: every translation unit has it, and the linker keeps one.
extern "C" void cuda_on_cpu_switch(void** save_stack_pointer, void* stack_pointer);
asm(R"(
.text
.weak cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");

// The first switch pops six registers and returns to `entry`, whose return address, 0, is never used.
inline void prepare(Context& context, void* stack, void (*entry)()) {
  auto* top = reinterpret_cast<uint64_t*>(static_cast<char*>(stack) + kStackBytes);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; i++) *--top = 0;
  context.stack_pointer = top;
}

inline void switch_context(Context& from, Context& to) { cuda_on_cpu_switch(&from.stack_pointer, to.stack_pointer); }

#endif

}  // namespace cuda_on_cpu
