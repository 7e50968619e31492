// Which CPUs the threads of a pool run on.
#pragma once

#include <sched.h>

#include <cstdint>
#include <vector>

namespace postroad {

// Where a pool has as many threads as there are CPUs for the process, each has one of its own. Left to itself the
// kernel puts two on one CPU when another process needs theirs for a moment, and lets them stay there for seconds: they
// wait for each other by turns, so that neither looks as if it lacked time.
//
// A thread that is bound cannot get out of the way of a process that keeps its CPU busy, and all others wait for it.
// So binding is given up for a while when threads get too little time.
class CpuBinding {
public:
    explicit CpuBinding(int threads);

    // Around what the threads do together, called by the first of them. It is bound only in between: threads that it
    // makes, and whoever asks for its CPUs, see nothing of it.
    void begin();
    void end();

    // By any other thread, between `begin` and `end`. is_bound: its own, false at first.
    void follow(int index, bool& is_bound) const;

private:
    void judge(int64_t ran, int64_t passed);

    cpu_set_t allowed_;
    std::vector<int> cpus_;  // of each thread; empty: threads are never bound
    bool is_on_ = false;
    cpu_set_t before_;                      // the first thread's
    int64_t began_ = 0, began_thread_ = 0;  // of its clock, and of the time that it ran
    int64_t ran_ = 0, passed_ = 0;          // since it was judged last
    int64_t off_until_ = 0;                 // of its clock
};

}  // namespace postroad
