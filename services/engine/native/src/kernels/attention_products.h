// The two products of attention: queries with keys, and weights with values.
//
// A kind of products is a type with
//   kRows: how many rows are computed together at most;
//   prepare(num_rows): for products of so many rows, until it is called again;
//   score(call, queries, keys, num_blocks, upcoming, scores): scores [rows][kSpan] of num_blocks blocks of keys. Where
//     `upcoming` is given, the values of these blocks are fetched meanwhile;
//   weigh(call, weights, values, num_blocks, sums, sums_stride): sums [rows][value_stride] of the weighted values.
// A row's numbers must not depend on the rows beside it, and blocks whose weights are 0 must not change its sums.
#pragma once

#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace postroad {
namespace {
namespace attention {

// Blocks of keys or values, in the order of the sequence.
struct Blocks {
    const uint32_t* base;
    const int32_t* numbers;
    int64_t stride;

    const uint32_t* operator[](int index) const { return base + numbers[index] * stride; }
    Blocks from(int index) const { return {base, numbers + index, stride}; }
};

// The left operand of a product. The stride counts words.
struct RowSpan {
    const uint32_t* first;
    int64_t stride;
    int count;
};

// Two neighbouring blocks of keys: 32 columns. While they are multiplied, their values and the next two blocks of keys
// are fetched: a decode reads each of them once, from memory.
template <bool kFetches>
struct KeyColumns {
    const uint32_t* first;
    const uint32_t* second;
    const uint32_t* upcoming[4];

    const uint32_t* address(int64_t, int column) const {
        return column < kBlock ? first + column : second + column - kBlock;
    }
    static constexpr int64_t stride() { return kBlock; }
    void prefetch(int64_t word) const {
        if constexpr (kFetches) {
            for (const uint32_t* block : upcoming) simd::prefetch(block + word * kBlock);
        }
    }
};

// Some columns of values: a run per block of tokens.
struct ValueColumns {
    const Blocks& values;
    int64_t first_column;
    int64_t row_stride;

    const uint32_t* address(int64_t run, int column) const {
        return values[static_cast<int>(run)] + first_column + column;
    }
    int64_t stride() const { return row_stride; }
    static void prefetch(int64_t) {}
};

// By vectors of the instruction set.
template <class Fmt>
class VectorProducts {
public:
    static constexpr int kRows = 48;

    void prepare(int) {}

    void score(const AttentionCall& call, const RowSpan& queries, const Blocks& keys, int num_blocks,
               const Blocks* upcoming, float* scores) const {
        // Of an odd number the last is computed twice, and masked.
        const auto bounded = [&](int block) { return block < num_blocks ? block : num_blocks - 1; };
        const int64_t words = ceil_div(call.head_dim, Fmt::kPerWord);
        for (int block = 0; block < num_blocks; block += 2, scores += 2 * kBlock) {
            const uint32_t* first = keys[block];
            const uint32_t* second = keys[bounded(block + 1)];
            for_each_tile<simd::kTileRows>(0, queries.count, [&](auto rows, int64_t row) {
                const uint32_t* some = queries.first + row * queries.stride;
                float* tile_scores = scores + row * kSpan;
                if (row > 0 || !upcoming) {
                    const KeyColumns<false> columns{first, second, {}};
                    return score_tile<rows.value>(some, queries.stride, columns, words, tile_scores);
                }
                const KeyColumns<true> columns{first,
                                               second,
                                               {(*upcoming)[block], (*upcoming)[bounded(block + 1)],
                                                keys[bounded(block + 2)], keys[bounded(block + 3)]}};
                score_tile<rows.value>(some, queries.stride, columns, words, tile_scores);
            });
        }
    }

    void weigh(const AttentionCall& call, const RowSpan& weights, const Blocks& values, int num_blocks, float* sums,
               int64_t sums_stride) const {
        constexpr int kColumns = simd::kTileVectors * simd::kWidth;
        int64_t column = 0;
        for (; column + kColumns <= call.value_stride; column += kColumns) {
            weigh_columns<simd::kTileVectors>(call, weights, values, num_blocks, column, sums, sums_stride);
        }
        for (; column < call.value_stride; column += simd::kWidth) {
            weigh_columns<1>(call, weights, values, num_blocks, column, sums, sums_stride);
        }
    }

private:
    template <int kCount, bool kFetches>
    static void score_tile(const uint32_t* queries, int64_t stride, const KeyColumns<kFetches>& keys, int64_t words,
                           float* scores) {
        constexpr int kColumns = simd::kTileVectors * simd::kWidth;
        for (int column = 0; column < 2 * kBlock; column += kColumns) {
            KeyColumns<kFetches> some = keys;
            some.first = column < kBlock ? keys.first + column : keys.second + column - kBlock;
            tile<Fmt, kCount, simd::kTileVectors>(queries, stride, some, 1, words, scores + column, kSpan);
        }
    }

    template <int kVectors>
    static void weigh_columns(const AttentionCall& call, const RowSpan& weights, const Blocks& values, int num_blocks,
                              int64_t column, float* sums, int64_t sums_stride) {
        const ValueColumns columns{values, column, call.value_stride};
        for_each_tile<simd::kTileRows>(0, weights.count, [&](auto rows, int64_t row) {
            tile<Fmt, rows.value, kVectors>(weights.first + row * weights.stride, weights.stride, columns, num_blocks,
                                            kBlock / Fmt::kPerWord, sums + row * sums_stride + column, sums_stride);
        });
    }
};

}  // namespace attention
}  // namespace
}  // namespace postroad
