// The step's threads: they run one function together and meet at barriers inside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "cpu_binding.h"

namespace postroad {

class ThreadPool;

// Memory that a thread will read, as far as it has not been fetched.
struct Expected {
    const char* first = nullptr;
    const char* last = nullptr;
};

// What one of the threads sees of its team. All threads of a team make the same calls in the same order.
//
// Threads do not meet behind a call but before the next one that needs what all of them did. What one thread does by
// itself is done by the one that comes last, while the others wait: it costs no meeting of its own.
class Worker {
public:
    Worker(ThreadPool& pool, int index) : pool_(pool), index_(index) {}

    int index() const { return index_; }
    int team_size() const;

    // The same thread as a team of its own.
    Worker alone() const { return Worker(pool_, index_, true); }

    // Calls task(first, last) for consecutive spans of [0, count), each at most `grain` long. Each thread begins with
    // spans that lie one after another, the same ones each time, and then helps the others.
    template <class Task>
    void parallel_for(int64_t count, int64_t grain, Task&& task);

    // Calls task() on one of the threads.
    template <class Task>
    void once(Task&& task);

    // Waits until all threads of the team have done everything before.
    void barrier();

    // Memory that this thread will read behind the next meeting, and may fetch while it waits for the others.
    void expect(const void* first, int64_t bytes);

    // The first of `spans` spans that is this thread's own.
    int64_t first_span(int64_t spans) const;

private:
    // kMet: nothing was done since all met. kLast: all others have come, and wait.
    enum class State { kMet, kWorking, kWaiting, kLast };

    Worker(ThreadPool& pool, int index, bool is_alone) : pool_(pool), index_(index), is_alone_(is_alone) {}

    void arrive();

    ThreadPool& pool_;
    int index_;
    bool is_alone_ = false;
    State state_ = State::kMet;
    uint32_t seen_ = 0;  // of the pool's meetings
    Expected expected_{};
};

class ThreadPool {
public:
    explicit ThreadPool(int size);  // the calling thread is one of them; size >= 1
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }

    // Runs `body` on all threads, the caller among them, and returns when all are done. `body` must not throw.
    void run(const std::function<void(Worker&)>& body);

private:
    friend class Worker;

    // A number of its own cache line: all threads write it.
    template <class T>
    struct alignas(64) Counter {
        std::atomic<T> value{0};
    };

    // A counter that threads wait on to change.
    struct Signal : Counter<uint32_t> {
        Counter<uint32_t> sleepers;

        void wait_while(uint32_t seen, Expected& expected);
        void advance();
    };

    void serve(int index);
    void open();

    const int size_;
    CpuBinding binding_;
    const std::function<void(Worker&)>* body_ = nullptr;
    bool stopping_ = false;
    Signal start_;    // one more with each run
    Signal meeting_;  // one more with each meeting
    Counter<int> arrived_;
    std::vector<Counter<int64_t>> taken_;  // of each thread's spans of this parallel_for; 0 when all have met
    std::vector<std::thread> threads_;
};

template <class Task>
void Worker::parallel_for(int64_t count, int64_t grain, Task&& task) {
    const auto run = [&](int64_t span) {
        const int64_t first = span * grain;
        task(first, first + grain < count ? first + grain : count);
    };
    const int64_t spans = (count + grain - 1) / grain;
    if (is_alone_) {
        for (int64_t span = 0; span < spans; ++span) run(span);
        return;
    }
    if (state_ != State::kMet) barrier();
    state_ = State::kWorking;
    const int64_t size = pool_.size();
    for (int64_t turn = 0; turn < size; ++turn) {
        const int64_t owner = (index_ + turn) % size;
        const int64_t first = spans * owner / size, last = spans * (owner + 1) / size;
        std::atomic<int64_t>& taken = pool_.taken_[owner].value;
        for (int64_t span; (span = first + taken.fetch_add(1, std::memory_order_relaxed)) < last;) run(span);
    }
}

template <class Task>
void Worker::once(Task&& task) {
    if (!is_alone_) arrive();
    if (is_alone_ || state_ == State::kLast) task();
}

inline void Worker::expect(const void* first, int64_t bytes) {
    expected_ = {static_cast<const char*>(first), static_cast<const char*>(first) + bytes};
}

inline int Worker::team_size() const { return is_alone_ ? 1 : pool_.size(); }

inline int64_t Worker::first_span(int64_t spans) const { return is_alone_ ? 0 : spans * index_ / pool_.size(); }

}  // namespace postroad
