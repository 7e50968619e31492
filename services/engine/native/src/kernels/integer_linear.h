// Linear layers of integers: rows of bytes times packed panels of codes.
//
// A group's products are added up exactly, as integers; then groups are added up in float32, in the order of the input,
// and last the products of high bytes.
// So a row's result depends neither on its batch nor, but for the fusing of multiplication and addition, on the
// instruction set.
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear.h"
#include "kernels/tile.h"

namespace postroad {
namespace {

// kScales, kMinima: of groups.
struct Int8 {
    static constexpr WeightFormat kFormat = WeightFormat::kInt8;
    static constexpr bool kNibbles = false, kSteps = false, kScales = false, kMinima = false;
};

struct Int8Groups {
    static constexpr WeightFormat kFormat = WeightFormat::kInt8Groups;
    static constexpr bool kNibbles = false, kSteps = false, kScales = true, kMinima = false;
};

struct Int4 {
    static constexpr WeightFormat kFormat = WeightFormat::kInt4;
    static constexpr bool kNibbles = true, kSteps = true, kScales = false, kMinima = false;
};

struct Int4Groups {
    static constexpr WeightFormat kFormat = WeightFormat::kInt4Groups;
    static constexpr bool kNibbles = true, kSteps = false, kScales = true, kMinima = true;
};

constexpr int64_t kIntegerAhead = 96 * kPanel;  // words: how far ahead the weights of a single tile are fetched

// Rows of integers as `quantize` leaves them, not tiled.
struct IntegerRows {
    const uint32_t* bytes;
    int64_t stride, words, groups;

    IntegerRows(const LinearCall& call, int64_t row)
        : bytes(call.input + row * call.input_stride),
          stride(call.input_stride),
          words(call.linear.words),
          groups(scales_features(call.linear.format) ? 1 : words / kGroupWords) {}

    const uint32_t* block(int row, int64_t index) const { return bytes + row * stride + index * kGroupWords; }
    const uint32_t* scale(int row, int64_t group) const { return bytes + row * stride + words + group; }
    const uint32_t* offset(int row, int64_t group) const { return scale(row, group) + groups; }
};

// The high bytes of a long row.
struct HighBytes {
    const uint32_t* bytes;  // [count]
    const uint32_t* words;  // [count], of the row: where they belong
    int64_t count;
    uint32_t offset;
    float scale;

    // rest: what follows the row's low bytes.
    HighBytes(const uint32_t* rest, int64_t row_words)
        : bytes(rest + LongRow::kHighBytes),
          words(rest - rest[LongRow::kToFirst] + LongRow{row_words}.high_words()),
          count(rest[LongRow::kHighCount]),
          offset(rest[LongRow::kHighOffset]),
          scale(bits_float(rest[LongRow::kHighScale])) {}
};

// What makes codes of kInt8 of the nibbles of a block of kInt4, for a vector of columns.
struct Steps {
    simd::Words steps, bases;

    static Steps load(const uint32_t* block, int column) {
        const auto* pairs = reinterpret_cast<const uint16_t*>(block + code_words(Int4::kFormat)) + column;
        const simd::Words loaded = simd::load_shorts(pairs);
        return {simd::first_byte_to_shorts(loaded), simd::second_byte_to_bytes(loaded)};
    }

    // A nibble times a step is a byte, so a short of two nibbles is multiplied at once.
    simd::Words codes(simd::Words nibbles) const {
        return simd::add_bytes(simd::multiply_shorts(nibbles, steps), bases);
    }
};

// A word of a panel whose scales are those of features, as codes of kInt8, for the vector of columns from `column` on.
template <class Scheme>
inline simd::Words word_codes(const uint32_t* panel, int64_t word, int column) {
    const uint32_t* block = panel + word / kGroupWords * block_words(Scheme::kFormat) + column;
    if constexpr (Scheme::kSteps) {
        const simd::Words loaded = simd::load_words(block + word % kGroupWords / 2 * kPanel);
        const simd::Words nibbles = word % 2 ? simd::high_nibbles(loaded) : simd::low_nibbles(loaded);
        return Steps::load(block - column, column).codes(nibbles);
    } else {
        return simd::load_words(block + word % kGroupWords * kPanel);
    }
}

// dots[row][vector] += products of a word of each column and the activations' word, `word` of block `index`.
template <class Scheme, int kRows, int kVectors>
inline void multiply_word(const IntegerRows& rows, int64_t index, int word, const simd::Words (&codes)[kVectors],
                          simd::Words (&dots)[kRows][kVectors]) {
    for (int row = 0; row < kRows; ++row) {
        const simd::Words activations = simd::broadcast_word(rows.block(row, index) + word);
        for (int v = 0; v < kVectors; ++v) {
            if constexpr (Scheme::kNibbles && !Scheme::kSteps) {
                dots[row][v] = simd::dot_nibbles(dots[row][v], codes[v], activations);
            } else {
                dots[row][v] = simd::dot_bytes(dots[row][v], codes[v], activations);
            }
        }
    }
}

// Likewise of a block of weights, whose first vector of columns begins at `column`.
template <class Scheme, int kRows, int kVectors>
inline void multiply_block(const IntegerRows& rows, int64_t index, const uint32_t* block, int column,
                           simd::Words (&dots)[kRows][kVectors]) {
    Steps steps[kVectors];
    for (int v = 0; Scheme::kSteps && v < kVectors; ++v) {
        steps[v] = Steps::load(block, column + v * simd::kWidth);
        steps[v].bases = simd::to_unsigned(steps[v].bases);
    }
    for (int word = 0; word < kGroupWords; word += Scheme::kNibbles ? 2 : 1) {
        const uint32_t* first = block + (Scheme::kNibbles ? word / 2 : word) * kPanel + column;
        simd::Words codes[kVectors], later[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const simd::Words loaded = simd::load_words(first + v * simd::kWidth);
            if constexpr (Scheme::kNibbles) {
                codes[v] = simd::low_nibbles(loaded);
                later[v] = simd::high_nibbles(loaded);
            } else {
                codes[v] = simd::to_unsigned(loaded);
            }
            if constexpr (Scheme::kSteps) {
                codes[v] = steps[v].codes(codes[v]);
                later[v] = steps[v].codes(later[v]);
            }
        }
        multiply_word<Scheme>(rows, index, word, codes, dots);
        if constexpr (Scheme::kNibbles) multiply_word<Scheme>(rows, index, word + 1, later, dots);
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

// sums[vector] += the products of a long row's high bytes as numbers.
template <class Scheme, int kVectors>
inline void add_high(const HighBytes& high, const uint32_t* panel, int column, simd::Floats (&sums)[kVectors]) {
    if (high.count == 0) return;
    simd::Words dots[kVectors];
    for (simd::Words& dot : dots) dot = simd::broadcast_word(&high.offset);
    for (int64_t i = 0; i < high.count; ++i) {
        const simd::Words activations = simd::broadcast_word(high.bytes + i);
        for (int v = 0; v < kVectors; ++v) {
            const simd::Words codes = word_codes<Scheme>(panel, high.words[i], column + v * simd::kWidth);
            dots[v] = simd::dot_bytes(dots[v], simd::to_unsigned(codes), activations);
        }
    }
    const simd::Floats scale = simd::broadcast(high.scale);
    for (int v = 0; v < kVectors; ++v) sums[v] = simd::fma(simd::from_integers(dots[v]), scale, sums[v]);
}

// kVectors vectors of columns of a panel, from `column` on, for kRows rows. Meanwhile a panel is fetched from
// `upcoming` on, unless that is null. Not inlined: one function serves every kind of element.
template <class Scheme, int kRows, int kVectors>
__attribute__((noinline)) void integer_tile(const LinearCall& call, int64_t row, const uint32_t* panel, int column,
                                            const uint32_t* upcoming, float* product) {
    constexpr int64_t kBlockWords = block_words(Scheme::kFormat);
    constexpr bool kLong = scales_features(Scheme::kFormat);
    const IntegerRows rows(call, row);
    const int64_t group_blocks = kLong ? rows.words / kGroupWords : 1;
    simd::Floats sums[kRows][kVectors];
    for (auto& row_sums : sums) {
        for (simd::Floats& sum : row_sums) sum = simd::zero();
    }
    for (int64_t g = 0; g < rows.groups; ++g) {
        simd::Words dots[kRows][kVectors];
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kVectors; ++v) {
                dots[r][v] = Scheme::kMinima ? simd::zero_words() : simd::broadcast_word(rows.offset(r, g));
            }
        }
        const int64_t first = g * group_blocks;
        for (int64_t block = first; block < first + group_blocks; ++block) {
            for (int64_t line = 0; upcoming && line < kBlockWords; line += kLine) {
                simd::prefetch(upcoming + block * kBlockWords + line);
            }
            multiply_block<Scheme>(rows, block, panel + block * kBlockWords, column, dots);
        }
        const uint32_t* halves = panel + first * kBlockWords + code_words(Scheme::kFormat);  // where a group is a block
        add_group<Scheme>(rows, g, reinterpret_cast<const uint16_t*>(halves) + column, dots, sums);
    }
    for (int r = 0; r < kRows; ++r) {
        if constexpr (kLong) {
            add_high<Scheme>(HighBytes(rows.scale(r, 0), rows.words), panel, column, sums[r]);
        }
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
