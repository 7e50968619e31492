// Physical memory for the KV cache, before it is used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "kv_cache.h"

namespace postroad {

// Touches a cache's blocks some way beyond those in use, on a thread that runs when no other wants to. The first touch
// of memory costs more than what a step writes there, the most on a virtual machine whose host has yet to find it.
// The scheduler hands out blocks that are fresh in the order of their numbers.
class Prefault {
public:
    explicit Prefault(const KvCache& cache);  // which must outlive it
    ~Prefault();
    Prefault(const Prefault&) = delete;
    Prefault& operator=(const Prefault&) = delete;

    // Blocks [0, end) are in use: those behind them come next. Nothing is touched before the first call.
    void used(int64_t end);

private:
    void serve();
    void touch(int64_t first, int64_t last) const;

    const KvCache& cache_;
    const int64_t slice_;  // blocks that are touched together, in all layers
    const int64_t ahead_;  // blocks
    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t used_ = 0;
    int64_t wanted_ = 0;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace postroad
