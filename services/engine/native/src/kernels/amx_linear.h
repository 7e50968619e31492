// Linear layers in bf16 by AMX, for any number of rows: its sums are not those of AVX-512 to the last bit, so a mix would
// make a row depend on its batch.
#pragma once

#include "kernels/amx_tiles.h"
#include "kernels/linear.h"

namespace postroad {
namespace {
namespace amx {

constexpr int kLinearRows = 2 * kTileHeight;  // rows computed together
constexpr int64_t kPanelBytes = kPanel * sizeof(uint32_t);
constexpr int64_t kPanelAhead = 96 * kPanel;  // words
// Words of a panel that stay in the first-level cache while blocks of rows are multiplied by them, and how many blocks.
constexpr int64_t kCachedWords = 288;
constexpr int64_t kCachedBlocks = 8;

// Tiles 0 to 3: sums (2 of rows x 2 of columns), 4 and 5: rows, 6 and 7: weights.
inline void configure_linear(int num_rows) {
    const int upper = num_rows < kTileHeight ? num_rows : kTileHeight;
    const int lower = num_rows > kTileHeight ? num_rows - kTileHeight : kTileHeight;
    TileConfig config;
    for (const int tile : {0, 1, 4}) config.shape(tile, upper, kTileWords);
    for (const int tile : {2, 3, 5}) config.shape(tile, lower, kTileWords);
    for (const int tile : {6, 7}) config.shape(tile, kTileHeight, kTileWords);
    config.load();
}

// Cache lines to fetch meanwhile, `lines` of them with each step of kTileWords words.
struct Upcoming {
    const uint32_t* next;
    int64_t lines;

    void fetch() {
        for (int64_t i = 0; i < lines; ++i, next += kLine) simd::prefetch(next);
    }
};

// Sums of up to 32 rows (up to 16 unless kTwo) of one panel, [rows][kPanel]: those of words [first, last) are added, or
// are the first. Tiles are configured. Rows are many times as long as weights stay in the first-level cache: they are
// loaded past it.
template <bool kTwo>
inline void add_words(const LinearCall& call, int64_t row, const uint32_t* weights, int64_t first, int64_t last,
                      Upcoming& upcoming, float* sums) {
    const uint32_t* upper = call.input + row * call.input_stride;
    const uint32_t* lower = upper + kTileHeight * call.input_stride;
    float* lower_sums = sums + kTileHeight * kPanel;
    const int64_t input_bytes = call.input_stride * int64_t{sizeof(uint32_t)};
    if (first == 0) {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (kTwo) {
            _tile_zero(2);
            _tile_zero(3);
        }
    } else {
        _tile_loadd(0, sums, kPanelBytes);
        _tile_loadd(1, sums + kTileWords, kPanelBytes);
        if constexpr (kTwo) {
            _tile_loadd(2, lower_sums, kPanelBytes);
            _tile_loadd(3, lower_sums + kTileWords, kPanelBytes);
        }
    }
    for (int64_t word = first; word < last; word += kTileWords) {
        upcoming.fetch();
        _tile_loadd(6, weights + word * kPanel, kPanelBytes);
        _tile_loadd(7, weights + word * kPanel + kTileWords, kPanelBytes);
        _tile_stream_loadd(4, upper + word, input_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            _tile_stream_loadd(5, lower + word, input_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, kPanelBytes);
    _tile_stored(1, sums + kTileWords, kPanelBytes);
    if constexpr (kTwo) {
        _tile_stored(2, lower_sums, kPanelBytes);
        _tile_stored(3, lower_sums + kTileWords, kPanelBytes);
    }
}

// Rows [first_row, last_row) of a panel, a few blocks of them at a time.
inline void linear_panel(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t panel, int& configured) {
    constexpr int64_t kGroupRows = kCachedBlocks * kLinearRows;
    alignas(64) float sums[kGroupRows * kPanel];
    const int64_t words = call.linear.words;
    const int64_t blocks = ceil_div(last_row - first_row, kLinearRows);
    const int64_t part = round_up(ceil_div(words, ceil_div(words, blocks > 1 ? kCachedWords : words)), kTileWords);
    const uint32_t* weights = call.linear.weights + panel * call.linear.panel_words;
    // One block: the panel itself, a little ahead. More: each block fetches its share of the next panel.
    Upcoming upcoming{weights + (blocks > 1 ? call.linear.panel_words : kPanelAhead),
                      ceil_div(call.linear.panel_words / kLine, blocks * (words / kTileWords))};
    const PanelOutput<Bf16> output{call, panel};
    for (int64_t group = first_row; group < last_row; group += kGroupRows) {
        const int64_t group_rows = last_row - group < kGroupRows ? last_row - group : kGroupRows;
        for (int64_t first = 0; first < words; first += part) {
            const int64_t last = first + part < words ? first + part : words;
            for (int64_t row = 0; row < group_rows; row += kLinearRows) {
                const int rows = static_cast<int>(group_rows - row < kLinearRows ? group_rows - row : kLinearRows);
                if (rows != configured) configure_linear(rows);
                configured = rows;
                (rows > kTileHeight ? add_words<true> : add_words<false>)(call, group + row, weights, first, last,
                                                                         upcoming, sums + row * kPanel);
            }
        }
        for (int64_t row = 0; row < group_rows; ++row) output.row(group + row, sums + row * kPanel);
    }
}

inline void linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel,
                   int64_t last_panel) {
    int configured = 0;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        linear_panel(call, first_row, last_row, panel, configured);
    }
    _tile_release();
}

}  // namespace amx
}  // namespace
}  // namespace postroad
