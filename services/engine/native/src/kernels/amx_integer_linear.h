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
static_assert(kLongRows == kTileHeight && kWordPadding == kTileWords);
constexpr int kSumsOfTile = kTileHeight * kPanel;  // of rows of a tile, and all columns of a panel
// Rows below which vectors of AVX-512 are faster, as measured.
constexpr int64_t kFewIntegerRows = 4;

// Integers of a block of rows on their way to the output.
template <class Fmt>
class Conversion {
public:
    explicit Conversion(const LinearCall& call)
        : call_(call),
          parts_{call.linear.words},
          output_{call, 0},
          accumulates_(call.epilogue == Epilogue::kAccumulate) {}

    // The block's sums, [rows][kPanel], and those of the high bytes of its first rows and of the rest, null where there
    // are none. They must stay until they are converted.
    void begin(int64_t panel, int64_t row, int rows, const int32_t* sums, const int32_t* high,
               const int32_t* lower_high) {
        output_.panel = panel;
        in_output_ = sums_in_output(call_, panel);
        first_row_ = row;
        rows_ = rows;
        done_ = 0;
        sums_ = sums;
        high_[0] = high;
        high_[1] = lower_high;
    }

    // Some of the rows that are left.
    void convert(int rows) {
        for (const int end = done_ + rows < rows_ ? done_ + rows : rows_; done_ < end; ++done_) convert_row();
    }

    void convert_rest() { convert(rows_); }

private:
    static constexpr int kVectors = kPanel / simd::kWidth;
    using Numbers = simd::Floats[kVectors];

    void convert_row() const {
        const uint32_t* row = call_.input + (first_row_ + done_) * call_.input_stride;
        Numbers numbers;
        for (simd::Floats& vector : numbers) vector = simd::zero();
        add(numbers, sums_ + done_ * kPanel, row[parts_.scale()]);
        const int32_t* high = high_[done_ / kTileHeight];
        if (high) add(numbers, high + done_ % kTileHeight * kPanel, row[parts_.high_scale()]);
        const float* scales = call_.linear.scales + output_.panel * kPanel;
        for (int v = 0; v < kVectors; ++v) numbers[v] = simd::mul(numbers[v], simd::load(scales + v * simd::kWidth));
        put(numbers);
    }

    static void add(Numbers& numbers, const int32_t* integers, uint32_t scale_bits) {
        const simd::Floats scale = simd::broadcast(bits_float(scale_bits));
        for (int v = 0; v < kVectors; ++v) {
            const simd::Words loaded = _mm512_load_si512(integers + v * simd::kWidth);
            numbers[v] = simd::fma(simd::from_integers(loaded), scale, numbers[v]);
        }
    }

    void put(const Numbers& numbers) const {
        if (!in_output_) {
            float product[kPanel];
            for (int v = 0; v < kVectors; ++v) simd::store(product + v * simd::kWidth, numbers[v]);
            return output_.row(first_row_ + done_, product);
        }
        float* output = static_cast<float*>(call_.output) + (first_row_ + done_) * call_.output_stride;
        output += output_.panel * kPanel;
        for (int v = 0; v < kVectors; ++v, output += simd::kWidth) {
            simd::store(output, accumulates_ ? simd::add(simd::load(output), numbers[v]) : numbers[v]);
        }
    }

    const LinearCall& call_;
    LongRow parts_;
    PanelOutput<Fmt> output_;
    bool accumulates_, in_output_ = false;
    int64_t first_row_ = 0;
    int rows_ = 0, done_ = 0;
    const int32_t* sums_ = nullptr;
    const int32_t* high_[2] = {};
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

    // Adds the products of rows of bytes, `stride` bytes apart. Rows are many times as long as weights stay in the
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

// The sums of up to 32 rows (up to 16 unless kTwo) and words [first, last) of one panel, [rows][kPanel]: added to what
// is there, unless they are the first ones. `codes` are those of word `first`. Tiles are configured. Meanwhile an
// earlier conversion is done. Calls between the instructions of tiles would cost more than what is called, so there are
// none.
template <bool kTwo, class Fmt>
__attribute__((flatten)) void add_products(const LinearCall& call, int64_t row, const uint32_t* codes, int64_t first,
                                           int64_t last, Upcoming& upcoming, Conversion<Fmt>& behind, int32_t* sums) {
    const uint32_t* upper = call.input + row * call.input_stride + first;
    const uint32_t* lower = upper + kTileHeight * call.input_stride;
    const int64_t input_bytes = call.input_stride * int64_t{sizeof(uint32_t)}, words = last - first;
    const int behind_rows = static_cast<int>(ceil_div(kIntegerRows / 2, words / kTileWords));
    int32_t* lower_sums = sums + kSumsOfTile;
    if (first == 0) {
        SumTiles<false>::clear();
        if constexpr (kTwo) SumTiles<true>::clear();
    } else {
        SumTiles<false>::load(sums);
        if constexpr (kTwo) SumTiles<true>::load(lower_sums);
    }
    for (int64_t word = 0; word < words; word += kTileWords) {
        upcoming.fetch();
        load_codes(codes + word * kPanel);
        SumTiles<false>::multiply(upper + word, input_bytes);
        behind.convert(behind_rows);
        if constexpr (kTwo) SumTiles<true>::multiply(lower + word, input_bytes);
        behind.convert(behind_rows);
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
        : call_(call), first_row_(first_row), last_row_(last_row), parts_{call.linear.words}, behind_(call) {
        const int64_t words = parts_.words;
        const bool is_whole = words <= kCachedWords || (blocks() == 1 && !Scheme::kSteps);
        part_ = is_whole ? words : round_up(ceil_div(words, ceil_div(words, kCachedWords)), kTileWords);
    }

    // Some of the sums may become output only with the next panel, or with `finish`.
    void run(int64_t panel) {
        const int64_t words = parts_.words, panel_words = call_.linear.panel_words;
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
                    add_part(row, rows, first, last, sums_ + slot * 2 * kSumsOfTile);
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

    void add_part(int64_t row, int rows, int64_t first, int64_t last, int32_t* sums) {
        if (rows != configured_) configure_linear(rows);
        configured_ = rows;
        (rows > kTileHeight ? add_products<true, Fmt> : add_products<false, Fmt>)(call_, row, codes_, first, last,
                                                                                  upcoming_, behind_, sums);
        if (last < parts_.words) return;
        const int32_t* high = high_sums<false>(row);
        const int32_t* lower_high = rows > kTileHeight ? high_sums<true>(row + kTileHeight) : nullptr;
        behind_.begin(panel_, row, rows, sums, high, lower_high);
        turn_ ^= 1;
    }

    // The sums of high bytes of a tile of rows, from `row` on; null where there are none.
    template <bool kLower>
    const int32_t* high_sums(int64_t row) {
        const HighBytes high(call_.input + row * call_.input_stride, parts_);
        if (high.count == 0) return nullptr;
        SumTiles<kLower>::clear();
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
            SumTiles<kLower>::multiply(high.bytes + place, call_.input_stride * int64_t{sizeof(uint32_t)});
        }
        int32_t* sums = high_sums_[turn_] + (kLower ? kSumsOfTile : 0);
        SumTiles<kLower>::store(sums);
        return sums;
    }

    const LinearCall& call_;
    int64_t first_row_, last_row_;
    LongRow parts_;
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
    if (last_row - first_row < kFewIntegerRows) {
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
