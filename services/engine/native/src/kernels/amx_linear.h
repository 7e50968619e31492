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
constexpr int64_t kGroupRows = kCachedBlocks * kLinearRows;

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

// Cache lines to fetch meanwhile, `lines` of them with each step of kTileWords words. Only into the second level: the
// first is full of the weights in use, and has few places for what is on its way, which the rows' tiles need.
struct Upcoming {
    const uint32_t* next;
    int64_t lines;

    void fetch() {
        for (int64_t i = 0; i < lines; ++i, next += kLine) _mm_prefetch(next, _MM_HINT_T1);
    }
};

// What else the processor does while tiles are multiplied, a part of it with each step of kTileWords words: it fetches
// weights to come and the memory that this block's sums will go to, and puts the sums of the last block there.
class Meanwhile {
public:
    explicit Meanwhile(const LinearCall& call) : call_(call) {}

    void fetch(Upcoming weights) { weights_ = weights; }

    // The block whose sums are being made: `rows` rows of a panel.
    void begin(int64_t row, int rows, int64_t panel) {
        coming_ = {row, rows, panel};
        fetched_ = 0;
    }

    // With as few rows as a decode has there is nothing to gain but the weights.
    void step(bool fetches_only) {
        weights_.fetch();
        if (fetches_only) return;
        for (int i = 0; i < kRowsPerStep && fetched_ < coming_.rows; ++i, ++fetched_) {
            PanelOutput<Bf16>{call_, coming_.panel}.fetch(coming_.row + fetched_);
        }
        for (int i = 0; i < kRowsPerStep && put_ < done_.rows; ++i) put_one();
    }

    // Puts what is left of the last block's sums.
    void finish() {
        while (put_ < done_.rows) put_one();
    }

    // The block's sums are whole. They must stay until `finish`.
    void end(const float* sums) {
        done_ = coming_;
        sums_ = sums;
        put_ = 0;
    }

private:
    static constexpr int kRowsPerStep = 2;

    struct Block {
        int64_t row;
        int rows;
        int64_t panel;
    };

    void put_one() {
        PanelOutput<Bf16>{call_, done_.panel}.row(done_.row + put_, sums_ + put_ * kPanel);
        ++put_;
    }

    const LinearCall& call_;
    Upcoming weights_{};
    Block coming_{}, done_{};
    int fetched_ = 0;
    const float* sums_ = nullptr;
    int put_ = 0;
};

// Where the sums of up to 32 rows of a panel are made: [rows][stride].
struct Sums {
    float* first;
    int64_t stride;
    bool are_new;  // there is nothing yet to be added to

    float* tile(int row, int column) const { return first + row * kTileHeight * stride + column * kTileWords; }
    int64_t bytes() const { return stride * int64_t{sizeof(float)}; }
};

// Adds up to 32 rows (up to 16 unless kTwo) of words [first, last) times one panel. Tiles are configured. Rows are many
// times as long as weights stay in the first-level cache: they are loaded past it.
template <bool kTwo, bool kOneBlock>
inline void add_words(const LinearCall& call, int64_t row, const uint32_t* weights, int64_t first, int64_t last,
                      Meanwhile& meanwhile, const Sums& sums) {
    const uint32_t* upper = call.input + row * call.input_stride;
    const uint32_t* lower = upper + kTileHeight * call.input_stride;
    const int64_t input_bytes = call.input_stride * int64_t{sizeof(uint32_t)};
    if (sums.are_new) {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (kTwo) {
            _tile_zero(2);
            _tile_zero(3);
        }
    } else {
        _tile_loadd(0, sums.tile(0, 0), sums.bytes());
        _tile_loadd(1, sums.tile(0, 1), sums.bytes());
        if constexpr (kTwo) {
            _tile_loadd(2, sums.tile(1, 0), sums.bytes());
            _tile_loadd(3, sums.tile(1, 1), sums.bytes());
        }
    }
    for (int64_t word = first; word < last; word += kTileWords) {
        meanwhile.step(kOneBlock);
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
    meanwhile.finish();  // the last block's sums may lie where these go
    _tile_stored(0, sums.tile(0, 0), sums.bytes());
    _tile_stored(1, sums.tile(0, 1), sums.bytes());
    if constexpr (kTwo) {
        _tile_stored(2, sums.tile(1, 0), sums.bytes());
        _tile_stored(3, sums.tile(1, 1), sums.bytes());
    }
}

// Whether sums can be made in the output itself: whole panels of numbers without a bias.
inline bool sums_in_output(const LinearCall& call, int64_t panel) {
    return (call.epilogue == Epilogue::kStore || call.epilogue == Epilogue::kAccumulate) && !call.linear.bias &&
           (panel + 1) * kPanel <= call.linear.out_features;
}

// Rows [first_row, last_row) of a panel, a few blocks of them at a time. sums: [kGroupRows][kPanel], `meanwhile` may
// still put some of them after the call.
inline void linear_panel(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t panel, int& configured,
                         Meanwhile& meanwhile, float* sums) {
    const int64_t words = call.linear.words;
    const int64_t blocks = ceil_div(last_row - first_row, kLinearRows);
    const int64_t part = round_up(ceil_div(words, ceil_div(words, blocks > 1 ? kCachedWords : words)), kTileWords);
    const int64_t height = part < words ? kGroupRows : kLinearRows;
    const uint32_t* weights = call.linear.weights + panel * call.linear.panel_words;
    // One block: the panel itself, a little ahead. More: each block fetches its share of the next panel.
    meanwhile.fetch({weights + (blocks > 1 ? call.linear.panel_words : kPanelAhead),
                     ceil_div(call.linear.panel_words / kLine, blocks * (words / kTileWords))});
    const bool in_output = sums_in_output(call, panel);
    for (int64_t group = first_row; group < last_row; group += height) {
        const int64_t group_rows = last_row - group < height ? last_row - group : height;
        for (int64_t first = 0; first < words; first += part) {
            const int64_t last = first + part < words ? first + part : words;
            for (int64_t row = 0; row < group_rows; row += kLinearRows) {
                const int rows = static_cast<int>(group_rows - row < kLinearRows ? group_rows - row : kLinearRows);
                if (rows != configured) configure_linear(rows);
                configured = rows;
                Sums block{sums + row * kPanel, kPanel, first == 0};
                if (in_output) {
                    block = {static_cast<float*>(call.output) + (group + row) * call.output_stride + panel * kPanel,
                             call.output_stride, first == 0 && call.epilogue == Epilogue::kStore};
                }
                if (in_output || last == words) meanwhile.begin(group + row, rows, panel);
                const auto add = blocks == 1 ? (rows > kTileHeight ? add_words<true, true> : add_words<false, true>)
                                             : (rows > kTileHeight ? add_words<true, false> : add_words<false, false>);
                add(call, group + row, weights, first, last, meanwhile, block);
                if (!in_output && last == words) meanwhile.end(block.first);
            }
        }
    }
}

inline void linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel,
                   int64_t last_panel) {
    alignas(64) float sums[kGroupRows * kPanel];
    Meanwhile meanwhile(call);
    int configured = 0;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        linear_panel(call, first_row, last_row, panel, configured, meanwhile, sums);
    }
    meanwhile.finish();
    _tile_release();
}

}  // namespace amx
}  // namespace
}  // namespace postroad
