#include "prefault.h"

#include <sched.h>

#include <algorithm>

namespace postroad {
namespace {

constexpr int64_t kSliceBytes = int64_t{2} << 20;    // of a layer: a huge page
constexpr int64_t kAheadBytes = int64_t{256} << 20;  // of all layers: several prompts
constexpr int64_t kTouchBytes = 4096;                // the smallest page

void run_when_idle() {
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);  // advice only
}

}  // namespace

Prefault::Prefault(const KvCache& cache)
    : cache_(cache),
      slice_(ceil_div(kSliceBytes, cache.block_bytes())),
      ahead_(ceil_div(kAheadBytes, cache.block_bytes() * cache.num_layers())),
      thread_([this] { serve(); }) {}

Prefault::~Prefault() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void Prefault::used(int64_t end) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        used_ = std::max(used_, end);
        const int64_t wanted = std::min(cache_.num_blocks(), round_up(used_ + ahead_, slice_));
        if (wanted == wanted_) return;
        wanted_ = wanted;
    }
    changed_.notify_one();
}

void Prefault::serve() {
    run_when_idle();
    int64_t touched = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || touched < wanted_; });
        if (stopping_) return;
        const int64_t first = std::max(touched, used_);  // a step that was faster has touched its blocks itself
        touched = std::min(wanted_, first + slice_);
        lock.unlock();
        touch(first, touched);
        lock.lock();
    }
}

// A step may write the same word meanwhile: what is added to it here is 0, in one instruction. Not by MADV_POPULATE_WRITE,
// which would keep other threads from mapping memory for as long as this one waits for a core.
__attribute__((no_sanitize("thread"))) void Prefault::touch(int64_t first, int64_t last) const {
    for (int64_t layer = 0; layer < cache_.num_layers(); ++layer) {
        auto* byte = reinterpret_cast<char*>(cache_.keys(layer, first, 0));
        const char* end = byte + (last - first) * cache_.block_bytes();
        for (; byte < end && !stopping_; byte += kTouchBytes) {
            __atomic_fetch_or(reinterpret_cast<uint32_t*>(byte), 0u, __ATOMIC_RELAXED);
        }
    }
}

}  // namespace postroad
