// The one product that everything is made of: a tile of rows times a strip of columns, over words.
#pragma once

#include "kernels/kernels.h"

namespace postroad {
namespace {

// c[row][column] = sum over runs and words of a[row][run * run_words + word] * b(run, column)[word * stride], for kRows
// rows and kVectors vectors of columns. `b` gives the address of a column vector's first word in a run, and fetches
// what will be needed soon.
template <class Fmt, int kRows, int kVectors, class Columns>
inline void tile(const uint32_t* a, int64_t a_stride, const Columns& b, int64_t runs, int64_t run_words, float* c,
                 int64_t c_stride) {
    simd::Floats sums[kRows][kVectors];
    for (int row = 0; row < kRows; ++row) {
        for (int v = 0; v < kVectors; ++v) sums[row][v] = simd::zero();
    }
    for (int64_t run = 0; run < runs; ++run) {
        const uint32_t* columns[kVectors];
        for (int v = 0; v < kVectors; ++v) columns[v] = b.address(run, v * simd::kWidth);
        const uint32_t* words = a + run * run_words;
        for (int64_t word = 0; word < run_words; ++word) {
            b.prefetch(word);
            simd::Words loaded[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                loaded[v] = simd::load_words(columns[v] + word * b.stride());
            }
            for (int row = 0; row < kRows; ++row) {
                const simd::Words broadcast = simd::broadcast_word(words + row * a_stride + word);
                for (int v = 0; v < kVectors; ++v) sums[row][v] = simd::dot(Fmt{}, sums[row][v], broadcast, loaded[v]);
            }
        }
    }
    for (int row = 0; row < kRows; ++row) {
        for (int v = 0; v < kVectors; ++v) simd::store(c + row * c_stride + v * simd::kWidth, sums[row][v]);
    }
}

template <int kValue>
struct Count {
    static constexpr int value = kValue;
};

// Calls body(Count<rows>) for a number of rows from 1 to kMax.
template <int kMax, class Body>
inline void with_count(int rows, const Body& body) {
    if constexpr (kMax > 1) {
        if (rows < kMax) return with_count<kMax - 1>(rows, body);
    }
    body(Count<kMax>{});
}

// Cuts [first, last) into spans of nearly equal length, each at most kMax: body(Count<length>, start of the span).
template <int kMax, class Body>
inline void for_each_tile(int64_t first, int64_t last, const Body& body) {
    while (first < last) {
        const int64_t tiles = ceil_div(last - first, kMax);
        const int rows = static_cast<int>(ceil_div(last - first, tiles));
        with_count<kMax>(rows, [&](auto count) { body(count, first); });
        first += rows;
    }
}

}  // namespace
}  // namespace postroad
