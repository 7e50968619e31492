// The step's threads: they run one function together and meet at barriers inside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace postroad {

class ThreadPool;

// What one of the threads sees of its team. All threads of a team make the same calls in the same order.
class Worker {
public:
    Worker(ThreadPool& pool, int index) : pool_(pool), index_(index) {}

    int index() const { return index_; }

    // The same thread as a team of its own.
    Worker alone() const { return Worker(pool_, index_, true); }

    // Calls task(first, last) for consecutive spans of [0, count), each at most `grain` long, on whichever thread is
    // free, and returns when all of them are done on all threads.
    template <class Task>
    void parallel_for(int64_t count, int64_t grain, Task&& task);

    // Waits for all threads of the team.
    void barrier();

private:
    Worker(ThreadPool& pool, int index, bool is_alone) : pool_(pool), index_(index), is_alone_(is_alone) {}

    ThreadPool& pool_;
    int index_;
    bool is_alone_ = false;
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

    void serve(int index);
    void barrier();

    // A counter that threads wait on to change. Each on its own cache line: they are written by all threads.
    struct alignas(64) Signal {
        std::atomic<uint32_t> value{0};
        std::atomic<uint32_t> sleepers{0};

        void wait_while(uint32_t seen);
        void advance();
    };

    const int size_;
    const std::function<void(Worker&)>* body_ = nullptr;
    bool stopping_ = false;
    Signal start_;    // one more with each run
    Signal meeting_;  // one more with each barrier that all have reached
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int64_t> next_{0};  // of the parallel_for in progress; back at 0 when all have met
    std::vector<std::thread> threads_;
};

template <class Task>
void Worker::parallel_for(int64_t count, int64_t grain, Task&& task) {
    if (is_alone_) {
        for (int64_t first = 0; first < count; first += grain) {
            task(first, first + grain < count ? first + grain : count);
        }
        return;
    }
    for (;;) {
        const int64_t first = pool_.next_.fetch_add(grain, std::memory_order_relaxed);
        if (first >= count) break;
        task(first, first + grain < count ? first + grain : count);
    }
    pool_.barrier();
}

inline void Worker::barrier() {
    if (!is_alone_) pool_.barrier();
}

}  // namespace postroad
