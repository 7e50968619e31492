#include "thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace postroad {
namespace {

// Waiting for a thread of the team: a few microseconds by spinning, then by offering the core to whoever else is ready
// to run, which may be the very thread that is waited for, then asleep. To wake a sleeper on a virtual machine takes as
// long as a whole phase of a decode; to spin on costs 100 ms a step where two threads share a core.
constexpr int kSpins = 200;
constexpr int kYields = 400;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void ThreadPool::Signal::wait_while(uint32_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
        if (value.load(std::memory_order_acquire) != seen) return;
        pause();
    }
    for (int yields = 0; yields < kYields; ++yields) {
        if (value.load(std::memory_order_acquire) != seen) return;
        sched_yield();
    }
    // Sequentially consistent here and in `advance`: either the sleeper sees the new value, or the waker the sleeper.
    sleepers.fetch_add(1);
    while (value.load() == seen) futex_wait(value, seen);
    sleepers.fetch_sub(1);
}

void ThreadPool::Signal::advance() {
    value.fetch_add(1);
    if (sleepers.load() != 0) futex_wake_all(value);
}

ThreadPool::ThreadPool(int size) : size_(size) {
    for (int index = 1; index < size; ++index) threads_.emplace_back([this, index] { serve(index); });
}

ThreadPool::~ThreadPool() {
    stopping_ = true;
    start_.advance();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(Worker&)>& body) {
    body_ = &body;
    start_.advance();
    Worker worker(*this, 0);
    body(worker);
    barrier();  // `body` may be gone once this returns
}

void ThreadPool::serve(int index) {
    Worker worker(*this, index);
    for (uint32_t seen = 0;; ++seen) {
        start_.wait_while(seen);
        if (stopping_) return;
        (*body_)(worker);
        barrier();
    }
}

void ThreadPool::barrier() {
    const uint32_t seen = meeting_.value.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
        meeting_.wait_while(seen);
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    meeting_.advance();
}

}  // namespace postroad
