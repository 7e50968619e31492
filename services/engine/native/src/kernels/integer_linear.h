// Linear layers of integers: rows of bytes times packed panels of codes.
//
// A group's products are added up exactly, as integers; then groups are added up in float32, in the order of the input.
// So a row's result depends neither on its batch nor, but for the fusing of multiplication and addition, on the
// instruction set.
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear.h"
#include "kernels/tile.h"

namespace postroad {
namespace {

struct Int8 {
    static constexpr WeightFormat kFormat = WeightFormat::kInt8;
    static constexpr bool kNibbles = false, kScales = false, kMinima = false;
};

struct Int8Groups {
    static constexpr WeightFormat kFormat = WeightFormat::kInt8Groups;
    static constexpr bool kNibbles = false, kScales = true, kMinima = false;
};

struct Int4 {
    static constexpr WeightFormat kFormat = WeightFormat::kInt4;
    static constexpr bool kNibbles = true, kScales = true, kMinima = true;
};

constexpr int64_t kIntegerAhead = 96 * kPanel;  // words: how far ahead the weights of a single tile are fetched

// Rows of integers as `quantize` leaves them.
struct IntegerRows {
    const uint32_t* bytes;
    int64_t stride, words, groups;
    int levels;

    IntegerRows(const LinearCall& call, int64_t row)
        : bytes(call.input + row * call.input_stride),
          stride(call.input_stride),
          words(call.linear.words),
          groups(ceil_div(words, call.linear.group_words)),
          levels(activation_levels(call.linear.format)) {}

    // Blocks are counted through all levels, and so are groups.
    const uint32_t* block(int row, int64_t index) const { return bytes + row * stride + index * kGroupWords; }
    const uint32_t* scale(int row, int64_t group) const { return bytes + row * stride + levels * words + group; }
    const uint32_t* offset(int row, int64_t group) const { return scale(row, group) + levels * groups; }

    // Whether the group has a second level in one of the first so many rows.
    bool has_rest(int count, int64_t group) const {
        uint32_t any = 0;
        const uint32_t* rest = scale(0, groups + group);
        for (int row = 0; row < count; ++row, rest += stride) any |= *rest;
        return any != 0;
    }
};

// dots[row][vector] += products of a block's codes, whose first vector of columns begins at `codes`.
template <class Scheme, int kRows, int kVectors>
inline void multiply_block(const IntegerRows& rows, int64_t block, const uint32_t* codes,
                           simd::Words (&dots)[kRows][kVectors]) {
    constexpr int kCodeWords = Scheme::kNibbles ? kGroupWords / 2 : kGroupWords;
    for (int word = 0; word < kCodeWords; ++word) {
        simd::Words loaded[kVectors];
        for (int v = 0; v < kVectors; ++v) loaded[v] = simd::load_words(codes + word * kPanel + v * simd::kWidth);
        if constexpr (Scheme::kNibbles) {
            simd::Words low[kVectors], high[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                low[v] = simd::low_nibbles(loaded[v]);
                high[v] = simd::high_nibbles(loaded[v]);
            }
            for (int row = 0; row < kRows; ++row) {
                const simd::Words first = simd::broadcast_word(rows.block(row, block) + 2 * word);
                const simd::Words second = simd::broadcast_word(rows.block(row, block) + 2 * word + 1);
                for (int v = 0; v < kVectors; ++v) {
                    dots[row][v] = simd::dot_nibbles(dots[row][v], low[v], first);
                    dots[row][v] = simd::dot_nibbles(dots[row][v], high[v], second);
                }
            }
        } else {
            for (int v = 0; v < kVectors; ++v) loaded[v] = simd::to_unsigned(loaded[v]);
            for (int row = 0; row < kRows; ++row) {
                const simd::Words activations = simd::broadcast_word(rows.block(row, block) + word);
                for (int v = 0; v < kVectors; ++v) {
                    dots[row][v] = simd::dot_bytes(dots[row][v], loaded[v], activations);
                }
            }
        }
    }
}

// sums[row][vector] += the group's products as numbers. `halves`: the columns' scales, and kPanel further their minima.
template <class Scheme, int kRows, int kVectors>
inline void add_group(const IntegerRows& rows, int64_t g, const uint16_t* halves,
                      const simd::Words (&dots)[kRows][kVectors], simd::Floats (&sums)[kRows][kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
        simd::Floats scales = simd::zero(), minima = simd::zero();
        if constexpr (Scheme::kScales) scales = simd::load_halves(halves + v * simd::kWidth);
        if constexpr (Scheme::kMinima) minima = simd::load_halves(halves + kPanel + v * simd::kWidth);
        for (int row = 0; row < kRows; ++row) {
            simd::Floats dot = simd::from_integers(dots[row][v]);
            const simd::Floats row_scale = simd::broadcast(bits_float(*rows.scale(row, g)));
            if constexpr (Scheme::kScales) {
                sums[row][v] = simd::fma(simd::mul(dot, row_scale), scales, sums[row][v]);
            } else {
                sums[row][v] = simd::fma(dot, row_scale, sums[row][v]);
            }
            if constexpr (Scheme::kMinima) {
                sums[row][v] = simd::fma(simd::broadcast(bits_float(*rows.offset(row, g))), minima, sums[row][v]);
            }
        }
    }
}

// kVectors vectors of columns of a panel, from `column` on, for kRows rows. Meanwhile a panel is fetched from `upcoming`
// on, unless that is null. Not inlined: one function serves every kind of element.
template <class Scheme, int kRows, int kVectors>
__attribute__((noinline)) void integer_tile(const LinearCall& call, int64_t row, const uint32_t* panel, int column,
                         const uint32_t* upcoming, float* product) {
    constexpr int64_t kBlockWords = block_words(Scheme::kFormat);
    constexpr int64_t kCodeWords = (Scheme::kNibbles ? kGroupWords / 2 : kGroupWords) * kPanel;
    constexpr int kLevels = activation_levels(Scheme::kFormat);
    const IntegerRows rows(call, row);
    const int64_t group_blocks = Scheme::kScales ? 1 : call.linear.group_words / kGroupWords;
    const int64_t blocks = call.linear.words / kGroupWords;
    simd::Floats sums[kRows][kVectors];
    for (auto& row_sums : sums) {
        for (simd::Floats& sum : row_sums) sum = simd::zero();
    }
    for (int64_t g = 0; g < rows.groups; ++g) {
        const int64_t first = g * group_blocks;
        const int64_t last = first + group_blocks < blocks ? first + group_blocks : blocks;
        for (int level = 0; level < kLevels && (level == 0 || rows.has_rest(kRows, g)); ++level) {
            const int64_t group = level * rows.groups + g;
            simd::Words dots[kRows][kVectors];
            for (int r = 0; r < kRows; ++r) {
                for (int v = 0; v < kVectors; ++v) {
                    dots[r][v] = Scheme::kMinima ? simd::zero_words() : simd::broadcast_word(rows.offset(r, group));
                }
            }
            for (int64_t block = first; block < last; ++block) {
                const uint32_t* codes = panel + block * kBlockWords;
                if (upcoming && level == 0) {
                    for (int64_t line = 0; line < kBlockWords; line += kLine) {
                        simd::prefetch(upcoming + block * kBlockWords + line);
                    }
                }
                multiply_block<Scheme>(rows, level * blocks + block, codes + column, dots);
            }
            const uint32_t* halves = panel + first * kBlockWords + kCodeWords;  // where a group is a block
            add_group<Scheme>(rows, group, reinterpret_cast<const uint16_t*>(halves) + column, dots, sums);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) simd::store(product + r * kPanel + column + v * simd::kWidth, sums[r][v]);
    }
}

// What becomes of some rows of a panel's product. product: [rows][kPanel], changed.
template <class Fmt, class Scheme>
inline void put_product(const LinearCall& call, int64_t row, int64_t panel, int rows, float* product) {
    const PanelOutput<Fmt> output{call, panel};
    const float* scales = call.linear.scales + panel * kPanel;
    for (int i = 0; !Scheme::kScales && i < rows * kPanel; i += simd::kWidth) {
        simd::store(product + i, simd::mul(simd::load(product + i), simd::load(scales + i % kPanel)));
    }
    output.rows(row, rows, product);
}

template <class Fmt, class Scheme, int kRows>
inline void integer_panel(const LinearCall& call, int64_t row, int64_t panel, const uint32_t* upcoming) {
    constexpr int kColumns = simd::kTileVectors * simd::kWidth;
    float product[kRows][kPanel];
    const uint32_t* weights = call.linear.weights + panel * call.linear.panel_words;
    for (int column = 0; column < kPanel; column += kColumns) {
        integer_tile<Scheme, kRows, simd::kTileVectors>(call, row, weights, column, column == 0 ? upcoming : nullptr,
                                                        product[0]);
    }
    put_product<Fmt, Scheme>(call, row, panel, kRows, product[0]);
}

template <class Fmt, class Scheme>
void integer_linear(const LinearCall& call, int64_t first_row, int64_t last_row, int64_t first_panel,
                    int64_t last_panel) {
    const bool one_tile = last_row - first_row <= simd::kIntegerTileRows;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        const uint32_t* weights = call.linear.weights + panel * call.linear.panel_words;
        // A single tile fetches its own panel, a little ahead; the first of several fetches the next panel.
        const uint32_t* upcoming = weights + (one_tile ? kIntegerAhead : call.linear.panel_words);
        for_each_tile<simd::kIntegerTileRows>(first_row, last_row, [&](auto rows, int64_t row) {
            integer_panel<Fmt, Scheme, rows.value>(call, row, panel, upcoming);
            upcoming = nullptr;
        });
    }
}

}  // namespace
}  // namespace postroad
