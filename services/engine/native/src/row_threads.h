// Rows shared out to threads that live for one call.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace postroad {

// Calls make()(row) for each of `rows` rows on up to `threads` threads, this one among them. `make` is called once per
// thread: what it returns may own scratch memory.
template <class Make>
void for_each_row(std::size_t rows, std::size_t threads, const Make& make) {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        auto visit = make();
        for (std::size_t row; (row = next.fetch_add(1, std::memory_order_relaxed)) < rows;) visit(row);
    };
    std::vector<std::thread> helpers;
    for (std::size_t helper = 1; helper < threads; ++helper) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace postroad
