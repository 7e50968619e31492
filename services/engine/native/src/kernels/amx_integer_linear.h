// Linear layers of integers whose scales are those of features, by AMX. Products of a group are summed by tiles as
// integers and become numbers while the next ones are computed: the same sums in the same order as without tiles, so
// few rows need not come here. Codes of 4 bits become bytes, some groups of a panel at a time, which stay in the
// first-level cache while all rows are multiplied by them.
#pragma once

#include "kernels/amx_linear.h"
#include "kernels/amx_tiles.h"
#include "kernels/integer_linear.h"

namespace postroad {
namespace {
namespace amx {

constexpr int kIntegerRows = 2 * kTileHeight;  // rows computed together
static_assert(kStepWords == kTileWords && kLongGroupWords <= kCachedWords);
// Rows below which vectors of AVX-512 are faster, as measured.
constexpr int64_t kFewIntegerRows = 4;

// Integers of a block of rows and one group, [rows][kPanel], on their way to numbers: rows of `sums`, which the last
// group's conversion finishes.
template <class Fmt>
class Conversion {
public:
    Conversion(const LinearCall& call, int64_t panel)
        : call_(call), output_{call, panel}, scales_(call.linear.scales + panel * kPanel) {}

    void begin(const int32_t* dots, float* sums, int64_t row, int rows, const uint32_t* row_scales, bool is_first,
               bool is_last) {
        dots_ = dots;
        sums_ = sums;
        row_ = row;
        rows_ = rows;
        row_scales_ = row_scales;
        is_first_ = is_first;
        is_last_ = is_last;
    }

    // Some of the rows that are left.
    void convert(int rows) {
        const int count = rows < rows_ ? rows : rows_;
        if (is_last_) {
            is_first_ ? convert_rows<true, true>(count) : convert_rows<false, true>(count);
        } else {
            is_first_ ? convert_rows<true, false>(count) : convert_rows<false, false>(count);
        }
        dots_ += count * kPanel;
        sums_ += count * kPanel;
        row_scales_ += count * call_.input_stride;
        row_ += count;
        rows_ -= count;
    }

    void convert_rest() { convert(rows_); }

private:
    template <bool kFirst, bool kLast>
    void convert_rows(int count) const {
        constexpr int kVectors = kPanel / simd::kWidth;
        const int32_t* dots = dots_;
        float* sums = sums_;
        const uint32_t* row_scale = row_scales_;
        const int64_t stride = call_.input_stride;
        for (int row = 0; row < count; ++row, dots += kPanel, sums += kPanel, row_scale += stride) {
            const simd::Floats scale = simd::broadcast(bits_float(*row_scale));
            for (int v = 0; v < kVectors; ++v) {
                const int column = v * simd::kWidth;
                const simd::Floats before = kFirst ? simd::zero() : simd::load(sums + column);
                simd::Floats sum = simd::fma(simd::from_integers(_mm512_load_si512(dots + column)), scale, before);
                if constexpr (kLast) sum = simd::mul(sum, simd::load(scales_ + column));
                simd::store(sums + column, sum);
            }
        }
        if constexpr (kLast) output_.rows(row_, count, sums_);
    }

    const LinearCall& call_;
    PanelOutput<Fmt> output_;
    const float* scales_;
    const int32_t* dots_ = nullptr;
    float* sums_ = nullptr;
    const uint32_t* row_scales_ = nullptr;
    int64_t row_ = 0;
    int rows_ = 0;
    bool is_first_ = false, is_last_ = false;
};

// The integers of up to 32 rows (up to 16 unless kTwo) of one panel, [rows][kPanel]: products of the words whose steps
// are in the mask. Tiles are configured. Meanwhile an earlier conversion is done.
template <bool kTwo, class Fmt>
inline void multiply_steps(const uint32_t* upper, int64_t stride, const uint32_t* weights, uint32_t steps,
                           Upcoming& upcoming, Conversion<Fmt>& behind, int32_t* dots) {
    const uint32_t* lower = upper + kTileHeight * stride;
    const int64_t input_bytes = stride * int64_t{sizeof(uint32_t)};
    const int behind_rows = static_cast<int>(ceil_div(kIntegerRows / 2, __builtin_popcount(steps)));
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; steps != 0; steps &= steps - 1) {
        const int64_t word = __builtin_ctz(steps) * kStepWords;
        upcoming.fetch();
        _tile_loadd(6, weights + word * kPanel, kPanelBytes);
        _tile_loadd(7, weights + word * kPanel + kTileWords, kPanelBytes);
        _tile_stream_loadd(4, upper + word, input_bytes);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        behind.convert(behind_rows);
        if constexpr (kTwo) {
            _tile_stream_loadd(5, lower + word, input_bytes);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
        behind.convert(behind_rows);
    }
    behind.convert_rest();
    int32_t* lower_dots = dots + kTileHeight * kPanel;
    _tile_stored(0, dots, kPanelBytes);
    _tile_stored(1, dots + kTileWords, kPanelBytes);
    if constexpr (kTwo) {
        _tile_stored(2, lower_dots, kPanelBytes);
        _tile_stored(3, lower_dots + kTileWords, kPanelBytes);
    }
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

// A panel for some rows.
template <class Fmt, class Scheme>
class IntegerPanel {
public:
    IntegerPanel(const LinearCall& call, int64_t panel, int64_t num_rows)
        : call_(call),
          weights_(call.linear.weights + panel * call.linear.panel_words),
          groups_(ceil_div(call.linear.words, call.linear.group_words)),
          behind_{{call, panel}, {call, panel}} {
        const int64_t blocks = ceil_div(num_rows, kIntegerRows), words = call.linear.words;
        if (blocks == 1) {
            part_groups_ = Scheme::kSteps ? 1 : groups_;
        } else {
            part_groups_ = words <= kCachedWords ? groups_ : kCachedWords / call.linear.group_words;
        }
        upcoming_ = {weights_ + (blocks > 1 ? call.linear.panel_words : kPanelAhead),
                     ceil_div(call.linear.panel_words / kLine, blocks * (words / kTileWords))};
    }

    // Rows [first_row, last_row), a few blocks of them at a time where the panel is longer than what stays in the
    // first-level cache. configured: rows that the tiles are configured for.
    void run(int64_t first_row, int64_t last_row, int& configured) {
        const int64_t some_rows = (part_groups_ < groups_ ? kCachedBlocks : 1) * kIntegerRows;
        for (int64_t some = first_row; some < last_row; some += some_rows) {
            const int64_t end = some + some_rows < last_row ? some + some_rows : last_row;
            for (int64_t first = 0; first < groups_; first += part_groups_) {
                const int64_t last = first + part_groups_ < groups_ ? first + part_groups_ : groups_;
                load_part(first, last);
                for (int64_t row = some; row < end; row += kIntegerRows) {
                    const int rows = static_cast<int>(end - row < kIntegerRows ? end - row : kIntegerRows);
                    if (rows != configured) configure_linear(rows);
                    configured = rows;
                    add_groups(row, rows, first, last, sums_ + (row - some) * kPanel);
                }
            }
        }
        behind_[turn_].convert_rest();
        behind_[turn_ ^ 1].convert_rest();
    }

private:
    // Makes bytes of the codes of groups [first, last), a part, where they are none.
    void load_part(int64_t first, int64_t last) {
        const int64_t first_word = first * call_.linear.group_words, end = last * call_.linear.group_words;
        if constexpr (Scheme::kSteps) {
            if (codes_ && first_word == first_word_) return;
            const int64_t words = (end < call_.linear.words ? end : call_.linear.words) - first_word;
            const uint32_t* block = weights_ + first_word / kGroupWords * block_words(Scheme::kFormat);
            for (int64_t word = 0; word < words; word += kGroupWords, block += block_words(Scheme::kFormat)) {
                expand_block(block, expanded_ + word * kPanel);
            }
            asm volatile("" : : : "memory");  // intrinsics of tiles do not say that they read memory
            codes_ = expanded_;
        } else {
            codes_ = weights_ + first_word * kPanel;
        }
        first_word_ = first_word;
    }

    void add_groups(int64_t row, int rows, int64_t first, int64_t last, float* sums) {
        const IntegerRows input(call_, row);
        for (int64_t g = first; g < last; ++g) {
            const uint32_t steps[] = {all_steps(g), input.high_steps(rows, g)};
            const int levels = steps[1] == 0 ? 1 : 2;
            for (int level = 0; level < levels; ++level) {
                multiply(input, rows, g, level, steps[level]);
                behind_[turn_].begin(dots_[turn_], sums, row, rows, input.scale(0, level * groups_ + g),
                                     g == 0 && level == 0, g == groups_ - 1 && level == levels - 1);
                turn_ ^= 1;
            }
        }
    }

    uint32_t all_steps(int64_t g) const {
        const int64_t rest = call_.linear.words - g * call_.linear.group_words;
        const int64_t words = rest < call_.linear.group_words ? rest : call_.linear.group_words;
        return static_cast<uint32_t>((uint64_t{1} << words / kStepWords) - 1);
    }

    void multiply(const IntegerRows& input, int rows, int64_t g, int level, uint32_t steps) {
        const int64_t word = g * call_.linear.group_words;
        (rows > kTileHeight ? multiply_steps<true, Fmt>
                            : multiply_steps<false, Fmt>)(input.bytes + level * input.words + word, input.stride,
                                                          codes_ + (word - first_word_) * kPanel, steps, upcoming_,
                                                          behind_[turn_], dots_[turn_]);
    }

    const LinearCall& call_;
    const uint32_t* weights_;
    int64_t groups_, part_groups_;
    const uint32_t* codes_ = nullptr;  // of kInt8, from `first_word_` on
    int64_t first_word_ = 0;
    Upcoming upcoming_{};
    Conversion<Fmt> behind_[2];  // of the last two groups: tiles need a while to leave their integers
    int turn_ = 0;
    alignas(64) int32_t dots_[2][kIntegerRows * kPanel];
    alignas(64) float sums_[kCachedBlocks * kIntegerRows * kPanel];
    alignas(64) uint32_t expanded_[Scheme::kSteps ? kCachedWords * kPanel : 1];
};

template <class Fmt, class Scheme>
void integer_linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel,
                    int64_t last_panel) {
    if (last_row - first_row < kFewIntegerRows) {
        return postroad::integer_linear<Fmt, Scheme>(call, first_row, last_row, first_panel, last_panel);
    }
    int configured = 0;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        IntegerPanel<Fmt, Scheme>(call, panel, last_row - first_row).run(first_row, last_row, configured);
    }
    _tile_release();
}

}  // namespace amx
}  // namespace
}  // namespace postroad
