// Linear layers of integers whose scales are those of features, by AMX. Products are summed by tiles as integers and
// become numbers while the next ones are computed: the same sums as without tiles, so few rows need not come here.
// Codes of 4 bits become bytes, a part of a panel at a time, which stays in the first-level cache while all rows are
// multiplied by it. High bytes are multiplied by copies of the few words of a panel that they belong to.
#pragma once

#include "kernels/amx_linear.h"
#include "kernels/amx_tiles.h"
#include "kernels/integer_linear.h"

namespace postroad {
namespace {
namespace amx {

constexpr int kIntegerRows = 2 * kTileHeight;  // rows computed together
static_assert(kLongRows == kIntegerRows && kWordPadding == kTileWords);
constexpr int64_t kLineBytes = kTileWords * sizeof(uint32_t);
constexpr int kSumsOfTile = kTileHeight * kPanel;  // of rows of a tile, and all columns of a panel
// Rows below which vectors of AVX-512 are faster, as measured.
constexpr int64_t kFewIntegerRows = 4;

// Rows that are multiplied together, tiled as LongRows are.
struct RowBlock {
    int64_t first;
    int rows;
    const uint32_t* bytes;  // [lines][rows][kTileWords]
    const uint32_t* rest;   // of the first row
    int64_t rest_stride;

    RowBlock() = default;
    RowBlock(const LinearCall& call, int64_t first_row, int num_rows) : first(first_row), rows(num_rows) {
        const LongRows places(call.linear.words, call.input_stride, num_rows, true);
        bytes = call.input + first_row * call.input_stride;
        rest = bytes + places.rest;
        rest_stride = places.rest_stride;
    }

    const uint32_t* tile(int64_t word, int row) const { return bytes + word * rows + row * kTileWords; }
};

// Integers of a block of rows on their way to the output.
template <class Fmt>
class Conversion {
public:
    explicit Conversion(const LinearCall& call) : call_(call), output_{call, 0} {}

    // The block's sums, [rows][kPanel], and those of its high bytes, null where there are none. They must stay until
    // they are converted.
    void begin(int64_t panel, const RowBlock& rows, const int32_t* sums, const int32_t* high) {
        output_.panel = panel;
        block_ = rows;
        done_ = 0;
        sums_ = sums;
        high_ = high;
    }

    // Some of the rows that are left.
    void convert(int rows) {
        const int end = done_ + rows < block_.rows ? done_ + rows : block_.rows;
        if (done_ == end) return;
        output_.with_put([&](const auto& put) {
            if (high_) {
                convert_rows<true>(end, put);
            } else {
                convert_rows<false>(end, put);
            }
        });
        done_ = end;
    }

    void convert_rest() { convert(block_.rows); }

private:
    using Product = typename PanelOutput<Fmt>::Product;
    static constexpr int kVectors = PanelOutput<Fmt>::kVectors;

    template <bool kHigh, class Put>
    void convert_rows(int last, const Put& put) const {
        const int first = done_;
        const int32_t* sums = sums_ + first * kPanel;
        const int32_t* high = high_ + (kHigh ? first * kPanel : 0);
        const uint32_t* rest = block_.rest + first * block_.rest_stride;
        Product scales;
        for (int v = 0; v < kVectors; ++v) {
            scales[v] = simd::load(call_.linear.scales + output_.panel * kPanel + v * simd::kWidth);
        }
        for (int i = first; i < last; ++i, rest += block_.rest_stride, sums += kPanel) {
            Product product;
            const simd::Floats scale = simd::broadcast(bits_float(rest[LongRow::kScale]));
            for (int v = 0; v < kVectors; ++v) product[v] = simd::mul(number(sums, v), scale);
            if constexpr (kHigh) {
                const simd::Floats high_scale = simd::broadcast(bits_float(rest[LongRow::kHighScale]));
                for (int v = 0; v < kVectors; ++v) product[v] = simd::fma(number(high, v), high_scale, product[v]);
                high += kPanel;
            }
            for (int v = 0; v < kVectors; ++v) product[v] = simd::mul(product[v], scales[v]);
            put(block_.first + i, product);
        }
    }

    static simd::Floats number(const int32_t* integers, int vector) {
        return simd::from_integers(_mm512_load_si512(integers + vector * simd::kWidth));
    }

    const LinearCall& call_;
    PanelOutput<Fmt> output_;
    RowBlock block_{};
    int done_ = 0;
    const int32_t* sums_ = nullptr;
    const int32_t* high_ = nullptr;
};

// The tiles of a block's first 16 rows, or of the lower ones: sums of half a panel's columns each, and the rows' bytes.
// Those of weights are 6 and 7.
template <bool kLower>
struct SumTiles {
    static void clear() {
        if constexpr (kLower) {
            _tile_zero(2);
            _tile_zero(3);
        } else {
            _tile_zero(0);
            _tile_zero(1);
        }
    }

    static void load(const int32_t* sums) {
        if constexpr (kLower) {
            _tile_loadd(2, sums, kPanelBytes);
            _tile_loadd(3, sums + kTileWords, kPanelBytes);
        } else {
            _tile_loadd(0, sums, kPanelBytes);
            _tile_loadd(1, sums + kTileWords, kPanelBytes);
        }
    }

    // Adds the products of rows of bytes, `stride` bytes apart. There are many times as many of them as stay in the
    // first-level cache: they are loaded past it.
    static void multiply(const uint32_t* rows, int64_t stride) {
        if constexpr (kLower) {
            _tile_stream_loadd(5, rows, stride);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else {
            _tile_stream_loadd(4, rows, stride);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
        }
    }

    static void store(int32_t* sums) {
        if constexpr (kLower) {
            _tile_stored(2, sums, kPanelBytes);
            _tile_stored(3, sums + kTileWords, kPanelBytes);
        } else {
            _tile_stored(0, sums, kPanelBytes);
            _tile_stored(1, sums + kTileWords, kPanelBytes);
        }
    }
};

inline void load_codes(const uint32_t* codes) {
    _tile_loadd(6, codes, kPanelBytes);
    _tile_loadd(7, codes + kTileWords, kPanelBytes);
}

// The sums of a block of rows (up to 16 unless kTwo) and words [first, last) of one panel, [rows][kPanel]: added to
// what is there, unless they are the first ones. `codes` are those of word `first`. Tiles are configured. Meanwhile an
// earlier conversion is done. Calls between the instructions of tiles would cost more than what is called, so there are
// none.
template <bool kTwo, class Fmt>
__attribute__((flatten)) void add_products(const RowBlock& block, const uint32_t* codes, int64_t first, int64_t last,
                                           Upcoming& upcoming, Conversion<Fmt>& behind, int32_t* sums) {
    const uint32_t* upper = block.tile(first, 0);
    const int64_t words = last - first, step = kTileWords * block.rows;
    const int behind_rows = static_cast<int>(ceil_div(kIntegerRows, words / kTileWords));
    int32_t* lower_sums = sums + kSumsOfTile;
    if (first == 0) {
        SumTiles<false>::clear();
        if constexpr (kTwo) SumTiles<true>::clear();
    } else {
        SumTiles<false>::load(sums);
        if constexpr (kTwo) SumTiles<true>::load(lower_sums);
    }
    for (int64_t word = 0; word < words; word += kTileWords, upper += step) {
        upcoming.fetch();
        load_codes(codes + word * kPanel);
        SumTiles<false>::multiply(upper, kLineBytes);
        behind.convert(behind_rows);
        if constexpr (kTwo) SumTiles<true>::multiply(upper + kTileHeight * kTileWords, kLineBytes);
    }
    behind.convert_rest();  // its sums may lie where these go
    SumTiles<false>::store(sums);
    if constexpr (kTwo) SumTiles<true>::store(lower_sums);
}

// A block of kInt4 as one of kInt8.
inline void expand_block(const uint32_t* block, uint32_t* codes) {
    for (int column = 0; column < kPanel; column += simd::kWidth) {
        const Steps steps = Steps::load(block, column);
        for (int word = 0; word < kGroupWords; word += 2) {
            const simd::Words loaded = simd::load_words(block + word / 2 * kPanel + column);
            uint32_t* first = codes + word * kPanel + column;
            _mm512_store_si512(first, steps.codes(simd::low_nibbles(loaded)));
            _mm512_store_si512(first + kPanel, steps.codes(simd::high_nibbles(loaded)));
        }
    }
}

// Panels for rows [first_row, last_row).
template <class Fmt, class Scheme>
class IntegerPanels {
public:
    IntegerPanels(const LinearCall& call, int64_t first_row, int64_t last_row)
        : call_(call), first_row_(first_row), last_row_(last_row), behind_(call) {
        const int64_t words = call.linear.words;
        const bool is_whole = words <= kCachedWords || (blocks() == 1 && !Scheme::kSteps);
        part_ = is_whole ? words : round_up(ceil_div(words, ceil_div(words, kCachedWords)), kTileWords);
    }

    // Some of the sums may become output only with the next panel, or with `finish`.
    void run(int64_t panel) {
        const int64_t words = call_.linear.words, panel_words = call_.linear.panel_words;
        panel_ = panel;
        weights_ = call_.linear.weights + panel * panel_words;
        codes_ = nullptr;
        upcoming_ = {weights_ + (blocks() > 1 ? panel_words : kPanelAhead),
                     ceil_div(panel_words / kLine, blocks() * (words / kTileWords))};
        // A few blocks of rows at a time where the panel is longer than what stays in the first-level cache.
        const int64_t some_rows = (part_ < words ? kCachedBlocks : 1) * kIntegerRows;
        for (int64_t some = first_row_; some < last_row_; some += some_rows) {
            const int64_t end = some + some_rows < last_row_ ? some + some_rows : last_row_;
            for (int64_t first = 0; first < words; first += part_) {
                const int64_t last = first + part_ < words ? first + part_ : words;
                load_part(first, last);
                for (int64_t row = some; row < end; row += kIntegerRows) {
                    const int rows = static_cast<int>(end - row < kIntegerRows ? end - row : kIntegerRows);
                    const int64_t slot = part_ < words ? (row - some) / kIntegerRows : turn_;
                    add_part({call_, row, rows}, first, last, sums_ + slot * 2 * kSumsOfTile);
                }
            }
        }
    }

    void finish() { behind_.convert_rest(); }

private:
    int64_t blocks() const { return ceil_div(last_row_ - first_row_, kIntegerRows); }

    // Makes bytes of the codes of words [first, last), a part, where they are none.
    void load_part(int64_t first, int64_t last) {
        if constexpr (Scheme::kSteps) {
            if (codes_ && first == loaded_) return;
            const uint32_t* block = weights_ + first / kGroupWords * block_words(Scheme::kFormat);
            for (int64_t word = 0; word < last - first; word += kGroupWords, block += block_words(Scheme::kFormat)) {
                expand_block(block, expanded_ + word * kPanel);
            }
            asm volatile("" : : : "memory");  // intrinsics of tiles do not say that they read memory
            codes_ = expanded_;
            loaded_ = first;
        } else {
            codes_ = weights_ + first * kPanel;
        }
    }

    void add_part(const RowBlock& block, int64_t first, int64_t last, int32_t* sums) {
        if (block.rows != configured_) configure_linear(block.rows);
        configured_ = block.rows;
        const bool are_two = block.rows > kTileHeight;
        (are_two ? add_products<true, Fmt> : add_products<false, Fmt>)(block, codes_, first, last, upcoming_, behind_,
                                                                       sums);
        if (last < call_.linear.words) return;
        behind_.begin(panel_, block, sums, are_two ? high_sums<true>(block) : high_sums<false>(block));
        turn_ ^= 1;
    }

    // The sums of the high bytes of a block of rows (up to 16 unless kTwo); null where there are none.
    template <bool kTwo>
    const int32_t* high_sums(const RowBlock& block) {
        const HighBytes high(block.rest, call_.linear.words);
        if (high.count == 0) return nullptr;
        const int64_t row_bytes = block.rest_stride * int64_t{sizeof(uint32_t)};
        SumTiles<false>::clear();
        if constexpr (kTwo) SumTiles<true>::clear();
        for (int64_t place = 0; place < high.count; place += kTileWords) {
            uint32_t* codes = gathered_[place / kTileWords % 2];
            for (int i = 0; i < kTileWords; ++i) {
                for (int column = 0; column < kPanel; column += simd::kWidth) {
                    _mm512_store_si512(codes + i * kPanel + column,
                                       word_codes<Scheme>(weights_, high.words[place + i], column));
                }
            }
            asm volatile("" : : : "memory");
            load_codes(codes);
            SumTiles<false>::multiply(high.bytes + place, row_bytes);
            if constexpr (kTwo) {
                SumTiles<true>::multiply(high.bytes + place + kTileHeight * block.rest_stride, row_bytes);
            }
        }
        int32_t* sums = high_sums_[turn_];
        SumTiles<false>::store(sums);
        if constexpr (kTwo) SumTiles<true>::store(sums + kSumsOfTile);
        return sums;
    }

    const LinearCall& call_;
    int64_t first_row_, last_row_;
    int64_t part_;  // words that are multiplied with all rows before the next ones
    int64_t panel_ = 0;
    const uint32_t* weights_ = nullptr;  // the panel
    const uint32_t* codes_ = nullptr;    // of kInt8, of the part
    int64_t loaded_ = 0;                 // the first word of a part that is expanded
    int configured_ = 0;                 // rows that tiles are configured for
    int turn_ = 0;
    Upcoming upcoming_{};
    Conversion<Fmt> behind_;
    alignas(64) int32_t sums_[kCachedBlocks * 2 * kSumsOfTile];
    alignas(64) int32_t high_sums_[2][2 * kSumsOfTile];
    alignas(64) uint32_t gathered_[2][kTileWords * kPanel];
    alignas(64) uint32_t expanded_[Scheme::kSteps ? kCachedWords * kPanel : 1];
};

template <class Fmt, class Scheme>
void integer_linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel,
                    int64_t last_panel) {
    if (!call.tiled_input) {
        return postroad::integer_linear<Fmt, Scheme>(call, first_row, last_row, first_panel, last_panel);
    }
    IntegerPanels<Fmt, Scheme> panels(call, first_row, last_row);
    for (int64_t panel = first_panel; panel < last_panel; ++panel) panels.run(panel);
    panels.finish();
    _tile_release();
}

}  // namespace amx
}  // namespace
}  // namespace postroad
