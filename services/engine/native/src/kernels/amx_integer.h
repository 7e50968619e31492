// AMX for linear layers of integers: the exact products of a group by tiles, everything else as AVX-512 does it, with
// the same bits. So rows that do not fill a tile go that way.
#pragma once

#include "kernels/integer_linear.h"

namespace postroad {
namespace {

constexpr int kIntegerTile = 16;  // rows and columns of a tile of sums

// The operand of ldtilecfg. Tiles 0 and 1: sums, taken in turn; 2: 16 rows of a group's bytes; 3: its codes.
struct alignas(64) IntegerTileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, kGroup, 64};
    uint8_t rows[16] = {kIntegerTile, kIntegerTile, kIntegerTile, kGroupWords};
};

// 16 columns of a panel for 16 rows. Tiles are configured.
template <class Scheme>
class IntegerTile {
public:
    IntegerTile(const LinearCall& call, int64_t row, const uint32_t* panel, int column)
        : rows_(call, row), panel_(panel), column_(column), groups_(call.linear.words / kGroupWords) {
        for (auto& sum : sums_) sum[0] = simd::zero();
    }

    // product: [16][kPanel]. While tiles multiply a group, the group before is added up. Groups are even in number.
    void run(float* product) {
        multiply<0>(0);
        for (int64_t g = 0; g < groups_; g += 2) {
            multiply<1>(g + 1);
            add(g, dots_[0]);
            if (g + 2 < groups_) multiply<0>(g + 2);
            add(g + 1, dots_[1]);
        }
        for (int row = 0; row < kIntegerTile; ++row) simd::store(product + row * kPanel + column_, sums_[row][0]);
    }

private:
    static constexpr int kCodeWords = Scheme::kNibbles ? kGroupWords / 2 : kGroupWords;
    static_assert(kWordPadding % (2 * kGroupWords) == 0);

    const uint32_t* block(int64_t g) const { return panel_ + g * block_words(Scheme::kFormat); }

    template <int kTile>
    void multiply(int64_t g) {
        const uint32_t* codes = block(g) + column_;
        if constexpr (Scheme::kNibbles) {
            for (int word = 0; word < kCodeWords; ++word) {
                const simd::Words packed = simd::load_words(codes + word * kPanel);
                _mm512_store_si512(codes_[kTile] + 2 * word * kIntegerTile, simd::low_nibbles(packed));
                _mm512_store_si512(codes_[kTile] + (2 * word + 1) * kIntegerTile, simd::high_nibbles(packed));
            }
            _tile_loadd(3, codes_[kTile], kIntegerTile * sizeof(uint32_t));
        } else {
            _tile_loadd(3, codes, kPanel * sizeof(uint32_t));
        }
        _tile_loadd(2, rows_.group(0, g), rows_.stride * sizeof(uint32_t));
        if constexpr (kTile == 0) {  // tiles are named by literals
            _tile_zero(0);
            _tile_dpbsud(0, 2, 3);
            _tile_stored(0, dots_[0], kIntegerTile * sizeof(uint32_t));
        } else {
            _tile_zero(1);
            _tile_dpbsud(1, 2, 3);
            _tile_stored(1, dots_[1], kIntegerTile * sizeof(uint32_t));
        }
    }

    void add(int64_t g, const uint32_t* stored) {
        simd::Words dots[kIntegerTile][1];
        for (int row = 0; row < kIntegerTile; ++row) {
            dots[row][0] = simd::load_words(stored + row * kIntegerTile);
            if constexpr (!Scheme::kMinima) {
                dots[row][0] = _mm512_add_epi32(dots[row][0], simd::broadcast_word(rows_.offset(row, g)));
            }
        }
        const auto* halves = reinterpret_cast<const uint16_t*>(block(g) + kCodeWords * kPanel) + column_;
        add_group<Scheme>(rows_, g, halves, dots, sums_);
    }

    alignas(64) uint32_t dots_[2][kIntegerTile * kIntegerTile];
    alignas(64) uint32_t codes_[2][kGroupWords * kIntegerTile];
    simd::Floats sums_[kIntegerTile][1];
    const IntegerRows rows_;
    const uint32_t* panel_;
    const int column_;
    const int64_t groups_;
};

template <class Fmt, class Scheme>
void amx_integer_linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel,
                        int64_t last_panel) {
    const int64_t last_whole = last_row - (last_row - first_row) % kIntegerTile;
    if (first_row < last_whole) {
        const IntegerTileConfig config;
        _tile_loadconfig(&config);
        for (int64_t panel = first_panel; panel < last_panel; ++panel) {
            const uint32_t* weights = call.linear.weights + panel * call.linear.panel_words;
            for (int64_t row = first_row; row < last_whole; row += kIntegerTile) {
                float product[kIntegerTile][kPanel];
                for (int column = 0; column < kPanel; column += kIntegerTile) {
                    IntegerTile<Scheme>(call, row, weights, column).run(product[0]);
                }
                put_product<Fmt, Scheme>(call, row, panel, kIntegerTile, product[0]);
            }
        }
        _tile_release();
    }
    if (last_whole < last_row) integer_linear<Fmt, Scheme>(call, last_whole, last_row, first_panel, last_panel);
}

}  // namespace
}  // namespace postroad
