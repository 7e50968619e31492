// Attention's products in bf16 by AMX, for any number of rows: its sums are not those of AVX-512 to the last bit, so a
// mix would make a row depend on its batch.
//
// 16 words of a block of keys are a right operand as they lie in the cache, and so are 16 columns of a block of values,
// with half as many rows. Two of them are multiplied by two tiles of rows, so that what a tile was loaded for is used
// twice: sums are tiles 0 to 3, rows 4 and 5, right operands 6 and 7.
#pragma once

#include "kernels/amx_tiles.h"
#include "kernels/attention.h"
#include "kernels/attention_products.h"

namespace postroad {
namespace {
namespace attention {

class TileProducts {
public:
    static constexpr int kRows = 2 * amx::kTileHeight;

    // Whether it serves heads of so many elements.
    static bool serves(int head_dim) { return head_dim % (Bf16::kPerWord * kHalfWords) == 0; }

    TileProducts() = default;
    ~TileProducts() { _tile_release(); }
    TileProducts(const TileProducts&) = delete;
    TileProducts& operator=(const TileProducts&) = delete;

    // More than a tile of rows are two tiles of one height, which share a row if there is an odd number of them.
    void prepare(int num_rows) {
        if (num_rows == prepared_) return;
        prepared_ = num_rows;
        const int height = num_rows > amx::kTileHeight ? (num_rows + 1) / 2 : num_rows;
        lower_ = num_rows - height;
        whole_ = operands(height, amx::kTileWords);
        half_ = operands(height, kHalfWords);
    }

    void score(const AttentionCall& call, const RowSpan& queries, const Blocks& keys, int num_blocks,
               const Blocks* upcoming, float* scores) const {
        const int64_t words = call.head_dim / Bf16::kPerWord;
        const int64_t whole_words = words / amx::kTileWords * amx::kTileWords;
        if (whole_words > 0) {
            whole_.load();
            score_words(queries, keys, num_blocks, upcoming, {0, whole_words, amx::kTileWords}, scores);
        }
        if (whole_words < words) {
            half_.load();
            score_words(queries, keys, num_blocks, upcoming, {whole_words, words, kHalfWords}, scores);
        }
    }

    void weigh(const AttentionCall& call, const RowSpan& weights, const Blocks& values, int num_blocks, float* sums,
               int64_t sums_stride) const {
        half_.load();
        for (int64_t column = 0; column < call.value_stride; column += 2 * amx::kTileWords) {
            with_tiles(column + amx::kTileWords < call.value_stride, [&](auto two_rows, auto two_columns) {
                const Sums<two_rows, two_columns> tiles{sums + column, lower_, sums_stride};
                weigh_columns(weights, values, num_blocks, call.value_stride, column, tiles);
            });
        }
    }

private:
    static constexpr int kHalfWords = 8;
    static constexpr int64_t kWordBytes = sizeof(uint32_t);
    static constexpr int64_t kKeyBytes = kBlock * kWordBytes;  // from one word of a block of keys to the next

    // Words of a head, in steps of a tile's.
    struct Words {
        int64_t first, last, step;
    };

    // Up to 2 x 2 tiles of sums, of which the lower ones begin at row `lower`.
    template <bool kTwoRows, bool kTwoColumns>
    struct Sums {
        float* first;
        int64_t lower;
        int64_t stride;

        void clear() const {
            _tile_zero(0);
            if constexpr (kTwoColumns) _tile_zero(1);
            if constexpr (kTwoRows) _tile_zero(2);
            if constexpr (kTwoRows && kTwoColumns) _tile_zero(3);
        }

        void load() const {
            _tile_loadd(0, first, bytes());
            if constexpr (kTwoColumns) _tile_loadd(1, first + amx::kTileWords, bytes());
            if constexpr (kTwoRows) _tile_loadd(2, first + lower * stride, bytes());
            if constexpr (kTwoRows && kTwoColumns) _tile_loadd(3, first + lower * stride + amx::kTileWords, bytes());
        }

        // Adds the products of rows and of right operands.
        void add(const uint32_t* rows, int64_t row_stride, const uint32_t* left, const uint32_t* right,
                 int64_t column_bytes) const {
            _tile_loadd(4, rows, row_stride * kWordBytes);
            _tile_loadd(6, left, column_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (kTwoColumns) {
                _tile_loadd(7, right, column_bytes);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (kTwoRows) {
                _tile_loadd(5, rows + lower * row_stride, row_stride * kWordBytes);
                _tile_dpbf16ps(2, 5, 6);
                if constexpr (kTwoColumns) _tile_dpbf16ps(3, 5, 7);
            }
        }

        void store() const {
            _tile_stored(0, first, bytes());
            if constexpr (kTwoColumns) _tile_stored(1, first + amx::kTileWords, bytes());
            if constexpr (kTwoRows) _tile_stored(2, first + lower * stride, bytes());
            if constexpr (kTwoRows && kTwoColumns) _tile_stored(3, first + lower * stride + amx::kTileWords, bytes());
        }

    private:
        int64_t bytes() const { return stride * kWordBytes; }
    };

    static amx::TileConfig operands(int height, int words) {
        amx::TileConfig config;
        for (const int sum : {0, 1, 2, 3}) config.shape(sum, height, amx::kTileWords);
        for (const int rows : {4, 5}) config.shape(rows, height, words);
        for (const int columns : {6, 7}) config.shape(columns, words, amx::kTileWords);
        return config;
    }

    // Calls body(whether there are two tiles of rows, whether of columns).
    template <class Body>
    void with_tiles(bool two_columns, const Body& body) const {
        using No = std::false_type;
        using Yes = std::true_type;
        if (lower_ == 0) return two_columns ? body(No{}, Yes{}) : body(No{}, No{});
        two_columns ? body(Yes{}, Yes{}) : body(Yes{}, No{});
    }

    // Adds products of some words, the first of which are the scores' first.
    void score_words(const RowSpan& queries, const Blocks& keys, int num_blocks, const Blocks* upcoming, Words words,
                     float* scores) const {
        const auto bounded = [&](int block) { return block < num_blocks ? block : num_blocks - 1; };
        for (int block = 0; block < num_blocks; block += 2, scores += 2 * kBlock) {
            const uint32_t* left = keys[block];
            const uint32_t* right = keys[bounded(block + 1)];
            const uint32_t* fetched[4];
            if (upcoming) {
                for (int i = 0; i < 2; ++i) {
                    fetched[i] = (*upcoming)[bounded(block + i)];
                    fetched[2 + i] = keys[bounded(block + 2 + i)];
                }
            }
            with_tiles(block + 1 < num_blocks, [&](auto two_rows, auto two_columns) {
                const Sums<two_rows, two_columns> tiles{scores, lower_, kSpan};
                words.first == 0 ? tiles.clear() : tiles.load();
                for (int64_t word = words.first; word < words.last; word += words.step) {
                    for (int i = 0; upcoming && i < 4; ++i) fetch(fetched[i] + word * kBlock, words.step, kBlock);
                    tiles.add(queries.first + word, queries.stride, left + word * kBlock, right + word * kBlock,
                              kKeyBytes);
                }
                tiles.store();
            });
        }
    }

    template <class Tiles>
    static void weigh_columns(const RowSpan& weights, const Blocks& values, int num_blocks, int64_t value_stride,
                              int64_t column, const Tiles& tiles) {
        tiles.clear();
        for (int block = 0; block < num_blocks; ++block) {
            const uint32_t* columns = values[block] + column;
            tiles.add(weights.first + block * kHalfWords, weights.stride, columns, columns + amx::kTileWords,
                      value_stride * kWordBytes);
        }
        tiles.store();
    }

    static void fetch(const uint32_t* lines, int64_t count, int64_t stride) {
        for (int64_t i = 0; i < count; ++i) simd::prefetch(lines + i * stride);
    }

    amx::TileConfig whole_, half_;  // by the words of a row's tile
    int lower_ = 0;                 // the first row of the lower tile; 0: there is none
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
