#include "cpu_binding.h"

#include <time.h>

namespace postroad {
namespace {

constexpr int64_t kJudgedNs = 100'000'000;  // of steps, after which their threads' share is looked at
constexpr int64_t kOffNs = 1'000'000'000;   // without binding, before it is tried again
constexpr double kLeastShare = 0.7;         // of a step's time that its first thread must run

int64_t now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// Where this fails, the thread goes on as it was.
void bind_to(const cpu_set_t& cpus) { sched_setaffinity(0, sizeof cpus, &cpus); }

void bind_to(int cpu) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    bind_to(own);
}

}  // namespace

CpuBinding::CpuBinding(int threads) {
    if (threads < 2 || sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) return;
    if (CPU_COUNT(&allowed_) != threads) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &allowed_)) cpus_.push_back(cpu);
    }
}

void CpuBinding::begin() {
    if (cpus_.empty()) return;
    began_ = now(CLOCK_MONOTONIC);
    is_on_ = began_ >= off_until_ && sched_getaffinity(0, sizeof before_, &before_) == 0;
    if (!is_on_) return;
    bind_to(cpus_.front());
    began_thread_ = now(CLOCK_THREAD_CPUTIME_ID);
}

void CpuBinding::end() {
    if (!is_on_) return;
    judge(now(CLOCK_THREAD_CPUTIME_ID) - began_thread_, now(CLOCK_MONOTONIC) - began_);
    bind_to(before_);
}

void CpuBinding::follow(int index, bool& is_bound) const {
    if (is_bound == is_on_) return;
    is_bound = is_on_;
    is_bound ? bind_to(cpus_[index]) : bind_to(allowed_);
}

// A thread that waits for others soon sleeps: where any of them lacks time, the first one, too, runs less.
void CpuBinding::judge(int64_t ran, int64_t passed) {
    ran_ += ran;
    passed_ += passed;
    if (passed_ < kJudgedNs) return;
    if (static_cast<double>(ran_) < kLeastShare * static_cast<double>(passed_)) off_until_ = began_ + passed + kOffNs;
    ran_ = passed_ = 0;
}

}  // namespace postroad
