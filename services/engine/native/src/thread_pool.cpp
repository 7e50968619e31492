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
constexpr int kLineBytes = 64;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Into the second-level cache, where it does not drive out what the first one holds.
void fetch_some(Expected& expected) {
    constexpr int kLines = 4;
    for (int line = 0; line < kLines && expected.first < expected.last; ++line, expected.first += kLineBytes) {
        __builtin_prefetch(expected.first, 0, 2);
    }
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void ThreadPool::Signal::wait_while(uint32_t seen, Expected& expected) {
    for (int spin = 0; spin < kSpins;) {
        if (value.load(std::memory_order_acquire) != seen) return;
        if (expected.first < expected.last) {
            fetch_some(expected);
        } else {
            pause();
            ++spin;
        }
    }
    for (int yields = 0; yields < kYields; ++yields) {
        if (value.load(std::memory_order_acquire) != seen) return;
        sched_yield();
    }
    // Sequentially consistent here and in `advance`: either the sleeper sees the new value, or the waker the sleeper.
    sleepers.value.fetch_add(1);
    while (value.load() == seen) futex_wait(value, seen);
    sleepers.value.fetch_sub(1);
}

void ThreadPool::Signal::advance() {
    value.fetch_add(1);
    if (sleepers.value.load() != 0) futex_wake_all(value);
}

ThreadPool::ThreadPool(int size) : size_(size), binding_(size), taken_(size) {
    for (int index = 1; index < size; ++index) threads_.emplace_back([this, index] { serve(index); });
}

ThreadPool::~ThreadPool() {
    stopping_ = true;
    start_.advance();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(Worker&)>& body) {
    binding_.begin();
    body_ = &body;
    start_.advance();
    Worker worker(*this, 0);
    body(worker);
    worker.barrier();  // `body` may be gone once this returns
    binding_.end();
}

void ThreadPool::serve(int index) {
    Worker worker(*this, index);
    Expected none;
    bool is_bound = false;
    for (uint32_t seen = 0;; ++seen) {
        start_.wait_while(seen, none);
        if (stopping_) return;
        binding_.follow(index, is_bound);
        (*body_)(worker);
        worker.barrier();
    }
}

// Lets all threads go on. Called by the last one that has come to a meeting.
void ThreadPool::open() {
    arrived_.value.store(0, std::memory_order_relaxed);
    for (Counter<int64_t>& taken : taken_) taken.value.store(0, std::memory_order_relaxed);
    meeting_.advance();
}

void Worker::arrive() {
    if (state_ == State::kWaiting || state_ == State::kLast) return;
    seen_ = pool_.meeting_.value.load(std::memory_order_acquire);
    const bool is_last = pool_.arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == pool_.size();
    state_ = is_last ? State::kLast : State::kWaiting;
}

void Worker::barrier() {
    if (is_alone_) return;
    arrive();
    if (state_ == State::kLast) {
        pool_.open();
    } else {
        pool_.meeting_.wait_while(seen_, expected_);
    }
    state_ = State::kMet;
}

}  // namespace postroad
