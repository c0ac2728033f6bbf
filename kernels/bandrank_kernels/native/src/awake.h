// Keeps a processor awake between batches. A processor without work halts; the hypervisor of a virtual machine then gives it
// away, and the next batch starts late and on cold caches.
#pragma once
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "simd.h"

namespace bandrank {

// Lets all other threads go before the calling one. Returns false if the system refuses.
inline bool take_idle_priority() {
    const sched_param none{};
    return !sched_setscheduler(0, SCHED_IDLE, &none);
}

inline bool has_idle_priority() {
    bool taken = false;
    std::thread([&] { taken = take_idle_priority(); }).join();  // a thread may not be allowed to leave it again
    return taken;
}

inline int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Keeps the calling thread's processor busy up to `until`, a time of `now_ns` that other threads move, and sleeps until it is
// moved again. Returns only if it may not do so at idle priority.
inline void keep_awake(int64_t* until) {
    constexpr int TURNS = 32;  // between readings of the clock
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // a handler would wait for all other threads too
    if (!take_idle_priority()) return;
    const std::atomic_ref<int64_t> end(*until);
    for (;;) {
        const int64_t seen = end;
        if (now_ns() >= seen) end.wait(seen);
        for (int i = 0; i < TURNS; ++i) relax();
    }
}

// Moves the end to `ns` from now.
inline void awake_for(int64_t* until, int64_t ns) {
    const std::atomic_ref<int64_t> end(*until);
    end = now_ns() + ns;
    end.notify_one();
}

}  // namespace bandrank
