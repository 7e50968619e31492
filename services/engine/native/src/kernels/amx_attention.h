// Attention's products in bf16 by AMX, for any number of rows: its sums are not those of AVX-512 to the last bit, so a
// mix would make a row depend on its batch.
//
// 16 words of a block of keys are a right operand as they lie in the cache, and so are 16 columns of a block of values,
// with half as many rows. Four blocks, or four times 16 columns, are summed up side by side in tiles 0 to 3.
#pragma once

#include "kernels/amx_tiles.h"
#include "kernels/attention.h"
#include "kernels/attention_products.h"

namespace postroad {
namespace {
namespace attention {

class TileProducts {
public:
    static constexpr int kRows = amx::kTileHeight;

    // Whether it serves heads of so many elements.
    static bool serves(int head_dim) { return head_dim % (Bf16::kPerWord * kHalfWords) == 0; }

    TileProducts() = default;
    ~TileProducts() { _tile_release(); }
    TileProducts(const TileProducts&) = delete;
    TileProducts& operator=(const TileProducts&) = delete;

    void prepare(int num_rows) {
        if (num_rows == prepared_) return;
        prepared_ = num_rows;
        amx::TileConfig config;
        for (int sum = 0; sum < kSums; ++sum) config.shape(sum, num_rows, amx::kTileWords);
        config.shape(4, num_rows, amx::kTileWords);
        config.shape(5, amx::kTileWords, amx::kTileWords);
        config.shape(6, num_rows, kHalfWords);
        config.shape(7, kHalfWords, amx::kTileWords);
        config.load();
    }

    void score(const AttentionCall& call, const RowSpan& queries, const Blocks& keys, int num_blocks,
               const Blocks* upcoming, float* scores) const {
        const auto bounded = [&](int block) { return block < num_blocks ? block : num_blocks - 1; };
        const int64_t words = call.head_dim / Bf16::kPerWord;
        for (int block = 0; block < num_blocks; block += kSums, scores += kSums * kBlock) {
            const uint32_t *some[kSums], *fetched[2 * kSums];
            for (int i = 0; i < kSums; ++i) {
                some[i] = keys[bounded(block + i)];
                if (!upcoming) continue;
                fetched[i] = (*upcoming)[bounded(block + i)];
                fetched[kSums + i] = keys[bounded(block + kSums + i)];
            }
            with_count<kSums>(num_blocks - block < kSums ? num_blocks - block : kSums, [&](auto count) {
                score_blocks<count.value>(queries, some, words, upcoming ? fetched : nullptr, scores);
            });
        }
    }

    void weigh(const AttentionCall& call, const RowSpan& weights, const Blocks& values, int num_blocks, float* sums,
               int64_t sums_stride) const {
        for (int64_t column = 0; column < call.value_stride; column += kSums * amx::kTileWords) {
            const auto tiles = static_cast<int>((call.value_stride - column) / amx::kTileWords);
            with_count<kSums>(tiles < kSums ? tiles : kSums, [&](auto count) {
                weigh_columns<count.value>(weights, values, num_blocks, column, call.value_stride, sums + column,
                                           sums_stride);
            });
        }
    }

private:
    static constexpr int kSums = 4;
    static constexpr int kHalfWords = 8;
    static constexpr int64_t kWordBytes = sizeof(uint32_t);
    static constexpr int64_t kKeyBytes = kBlock * kWordBytes;  // from one word of a block of keys to the next

    template <int kCount>
    static void clear() {
        _tile_zero(0);
        if constexpr (kCount > 1) _tile_zero(1);
        if constexpr (kCount > 2) _tile_zero(2);
        if constexpr (kCount > 3) _tile_zero(3);
    }

    template <int kCount>
    static void store(float* sums, int64_t stride) {
        const int64_t bytes = stride * kWordBytes;
        _tile_stored(0, sums, bytes);
        if constexpr (kCount > 1) _tile_stored(1, sums + amx::kTileWords, bytes);
        if constexpr (kCount > 2) _tile_stored(2, sums + 2 * amx::kTileWords, bytes);
        if constexpr (kCount > 3) _tile_stored(3, sums + 3 * amx::kTileWords, bytes);
    }

    // Adds the products of tile 4 with right operands of 16 rows. The numbers of tiles are part of the instructions, so
    // there is no loop over them.
    template <int kCount, class Right>
    static void add_whole(const Right& right, int64_t bytes) {
        _tile_loadd(5, right(0), bytes);
        _tile_dpbf16ps(0, 4, 5);
        if constexpr (kCount > 1) {
            _tile_loadd(5, right(1), bytes);
            _tile_dpbf16ps(1, 4, 5);
        }
        if constexpr (kCount > 2) {
            _tile_loadd(5, right(2), bytes);
            _tile_dpbf16ps(2, 4, 5);
        }
        if constexpr (kCount > 3) {
            _tile_loadd(5, right(3), bytes);
            _tile_dpbf16ps(3, 4, 5);
        }
    }

    // Likewise of tile 6 with right operands of 8 rows.
    template <int kCount, class Right>
    static void add_half(const Right& right, int64_t bytes) {
        _tile_loadd(7, right(0), bytes);
        _tile_dpbf16ps(0, 6, 7);
        if constexpr (kCount > 1) {
            _tile_loadd(7, right(1), bytes);
            _tile_dpbf16ps(1, 6, 7);
        }
        if constexpr (kCount > 2) {
            _tile_loadd(7, right(2), bytes);
            _tile_dpbf16ps(2, 6, 7);
        }
        if constexpr (kCount > 3) {
            _tile_loadd(7, right(3), bytes);
            _tile_dpbf16ps(3, 6, 7);
        }
    }

    // Scores of kCount blocks. As many words as are multiplied are fetched of each of 2 * kSums `fetched` blocks.
    template <int kCount>
    static void score_blocks(const RowSpan& queries, const uint32_t* const* keys, int64_t words,
                             const uint32_t* const* fetched, float* scores) {
        clear<kCount>();
        for (int64_t word = 0; word < words; word += amx::kTileWords) {
            const auto right = [&](int block) { return keys[block] + word * kBlock; };
            const bool is_whole = word + amx::kTileWords <= words;
            for (int i = 0; fetched && i < 2 * kSums; ++i) {
                const uint32_t* lines = fetched[i] + word * kBlock;
                for (int line = 0; line < (is_whole ? amx::kTileWords : kHalfWords); ++line) {
                    simd::prefetch(lines + line * kBlock);
                }
            }
            if (is_whole) {
                _tile_loadd(4, queries.first + word, queries.stride * kWordBytes);
                add_whole<kCount>(right, kKeyBytes);
            } else {
                _tile_loadd(6, queries.first + word, queries.stride * kWordBytes);
                add_half<kCount>(right, kKeyBytes);
            }
        }
        store<kCount>(scores, kSpan);
    }

    // Sums of 16 * kCount columns from `column` on.
    template <int kCount>
    static void weigh_columns(const RowSpan& weights, const Blocks& values, int num_blocks, int64_t column,
                              int64_t value_stride, float* sums, int64_t sums_stride) {
        clear<kCount>();
        for (int block = 0; block < num_blocks; ++block) {
            const uint32_t* columns = values[block] + column;
            _tile_loadd(6, weights.first + block * kHalfWords, weights.stride * kWordBytes);
            add_half<kCount>([&](int tile) { return columns + tile * amx::kTileWords; }, value_stride * kWordBytes);
        }
        store<kCount>(sums, sums_stride);
    }

    int prepared_ = 0;
};

// Heads of sizes that tiles do not serve are left to vectors.
template <KvFormat kKv>
void attend_by_tiles(const AttentionCall& call) {
    if (TileProducts::serves(call.head_dim)) return attend<Bf16, kKv, TileProducts>(call);
    attend<Bf16, kKv, VectorProducts<Bf16>>(call);
}

}  // namespace attention
}  // namespace
}  // namespace postroad
