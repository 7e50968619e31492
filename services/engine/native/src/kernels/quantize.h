// Activations to 8-bit integers, groups of neighbours by a scale of their own.
//
// A few activations of a decoder are a hundred times larger than the others, and all that share a scale with them lose
// their precision: on SmolLM2-135M a scale per row costs six times as much (in Kullback-Leibler divergence of the
// predictions) as a scale per 32 neighbours. But the shorter a group, the more often sums of integers have to become
// numbers. So a group is the whole row where weights allow it, its scale is made for the many, and the few that do not
// fit one byte get a second one: then little more is lost than with groups of 32. They are mostly the same few channels
// in all rows, so their products are gathered for some rows together (LongRow).
#pragma once

#include "kernels/kernels.h"

namespace postroad {
namespace {

constexpr float kLargestCode = 127.0f;
constexpr float kSpread = 10.0f;  // mean magnitudes that fit one byte: 8 standard deviations of a normal distribution
constexpr uint32_t kTinyMagnitude = 0x0d800000u;  // bits of 2^-100: what is smaller counts as 0
constexpr int64_t kWordBytes = sizeof(uint32_t);

// Elements [first, last) of a row, 0 from `size` on.
template <class Element>
struct Group {
    const Element* input;
    int64_t size, first, last;

    // Calls body(vector, index of its first element).
    template <class Body>
    void for_each(const Body& body) const {
        for (int64_t i = first; i < last; i += simd::kWidth) {
            if (i + simd::kWidth <= size) {
                body(simd::load_elements(input + i), i);
                continue;
            }
            Element padded[simd::kWidth] = {};
            if (i < size) std::memcpy(padded, input + i, sizeof(Element) * (size - i));
            body(simd::load_elements(padded), i);
        }
    }
};

// The largest magnitude of some numbers, as bits, and the sum of all magnitudes.
struct Magnitudes {
    uint32_t largest;
    float sum;
};

template <class Element>
inline Magnitudes magnitudes(const Group<Element>& group) {
    simd::Words largest = simd::zero_words();  // as integers: infinity and NaN are the largest
    simd::Floats sums = simd::zero();
    group.for_each([&](simd::Floats x, int64_t) {
        const simd::Words magnitude = simd::magnitude(x);
        largest = simd::max_integers(largest, magnitude);
        sums = simd::add(sums, simd::as_floats(magnitude));
    });
    return {simd::largest_integer(largest), simd::sum(sums)};
}

// What a group's numbers are divided by, and its inverse, if `top` is to become the largest code. The scale of a group
// in which a number is not finite is not finite either.
struct Scale {
    float scale, inverse;

    Scale(float top, uint32_t largest)
        : scale(top / kLargestCode), inverse(largest < kTinyMagnitude ? 0.0f : kLargestCode / top) {}
};

// The largest magnitude that one byte is to hold; where a number is not finite, that one.
inline float largest_of_byte(const Magnitudes& found, int64_t size) {
    const float largest = bits_float(found.largest);
    const float spread = kSpread * found.sum / static_cast<float>(size), least = largest / kHighStep;
    if (!(spread < largest)) return largest;
    return spread > least ? spread : least;
}

// Bytes of a row, a line of which may lie apart from the next one.
struct Bytes {
    int8_t* first;
    int64_t line_stride = kLineBytes;

    static constexpr int64_t kLineBytes = kWordPadding * kWordBytes;

    int8_t* at(int64_t i) const { return first + i / kLineBytes * line_stride + i % kLineBytes; }
};

// Bytes of a group, none of which needs more than one, counted from the row's first one. Returns their sum.
template <class Element>
inline float put_bytes(const Group<Element>& group, float inverse, Bytes bytes) {
    const simd::Floats inverses = simd::broadcast(inverse);
    simd::Floats sums = simd::zero();  // exact
    group.for_each([&](simd::Floats x, int64_t i) {
        const simd::Floats low = simd::round_nearest(simd::mul(x, inverses));
        sums = simd::add(sums, low);
        simd::store_bytes(bytes.at(i), low);
    });
    return simd::sum(sums);
}

// The high byte of whole numbers, which is 0 where one byte holds them: a 128th, rounded towards 0.
inline simd::Floats high_part(simd::Floats whole) {
    const simd::Floats part = simd::mul(whole, simd::broadcast(1.0f / kHighStep)), none = simd::zero();
    const simd::Floats margin = simd::broadcast(63.5f / kHighStep);
    return simd::round_nearest(
        simd::add(simd::max(simd::sub(part, margin), none), simd::min(simd::add(part, margin), none)));
}

struct LowHighSums {
    float low, high;
};

// Likewise where some need a high byte, too. High bytes lie one after another, counted from the row's first one;
// has_high gets a bit for each word that has any.
template <class Element>
inline LowHighSums put_low_and_high_bytes(const Group<Element>& group, float inverse, Bytes low_bytes,
                                          int8_t* high_bytes, uint32_t* has_high) {
    const int largest_code = static_cast<int>(float_bits(kLargestCode));
    const simd::Floats inverses = simd::broadcast(inverse);
    simd::Floats low_sums = simd::zero(), high_sums = simd::zero();  // exact
    group.for_each([&](simd::Floats x, int64_t i) {
        simd::Floats low = simd::round_nearest(simd::mul(x, inverses));
        if (simd::any_above(simd::magnitude(low), largest_code)) {
            const simd::Floats high = high_part(low);
            low = simd::sub(low, simd::mul(high, simd::broadcast(kHighStep)));
            high_sums = simd::add(high_sums, high);
            simd::store_bytes(high_bytes + i, high);
            for (int64_t word = i / kWordBytes; word < (i + simd::kWidth) / kWordBytes; ++word) {
                uint32_t bytes;
                std::memcpy(&bytes, high_bytes + word * kWordBytes, sizeof bytes);
                if (bytes != 0) has_high[word / 32] |= uint32_t{1} << word % 32;
            }
        }
        low_sums = simd::add(low_sums, low);
        simd::store_bytes(low_bytes.at(i), low);
    });
    return {simd::sum(low_sums), simd::sum(high_sums)};
}

// What makes products of signed codes of those of unsigned ones.
inline uint32_t code_offset(float sum) {
    return static_cast<uint32_t>(-kCodeBias * (sum == sum ? static_cast<int32_t>(sum) : 0));
}

// A long row but for the list of words that have high bytes; those it has are marked. rest: what follows the low bytes.
template <class Element>
inline void quantize_long_row(const Group<Element>& group, const LongRow& parts, Bytes bytes, uint32_t* rest) {
    uint32_t* has_high = rest + parts.has_high();
    std::memset(has_high, 0, kWordBytes * (parts.end() - parts.has_high()));
    const Magnitudes found = magnitudes(group);
    const float top = largest_of_byte(found, group.size);
    const Scale scale(top, found.largest);
    LowHighSums sums{};
    const bool has_any = top < bits_float(found.largest) && scale.inverse > 0.0f;
    if (has_any) {
        auto* high_bytes = reinterpret_cast<int8_t*>(rest + LongRow::kHighBytes);
        sums = put_low_and_high_bytes(group, scale.inverse, bytes, high_bytes, has_high);
    } else {
        sums.low = put_bytes(group, scale.inverse, bytes);
    }
    rest[LongRow::kScale] = float_bits(scale.scale);
    rest[LongRow::kOffset] = code_offset(sums.low);
    rest[LongRow::kHighOffset] = code_offset(sums.high);
    rest[LongRow::kHighScale] = float_bits(has_any ? scale.scale * kHighStep : 0.0f);
}

// Lists the words that have high bytes in any of the rows, and moves each row's high bytes to their places in the list.
// rest: what follows the first row's low bytes.
inline void gather_high_words(const LongRow& parts, int rows, uint32_t* rest, int64_t stride) {
    uint32_t* list = rest + parts.high_words();
    int64_t count = 0;
    for (int64_t some = 0; some < parts.words; some += 32) {
        const uint32_t* marks = rest + parts.has_high() + some / 32;
        uint32_t left = 0;
        for (int row = 0; row < rows; ++row) left |= marks[row * stride];
        for (; left != 0; left &= left - 1, ++count) {
            const int bit = __builtin_ctz(left);
            const int64_t word = some + bit;
            list[count] = static_cast<uint32_t>(word);
            for (int row = 0; row < rows; ++row) {  // a place in the list is never behind the word's own
                uint32_t* high = rest + row * stride + LongRow::kHighBytes;
                high[count] = marks[row * stride] >> bit & 1 ? high[word] : 0;
            }
        }
    }
    const int64_t end = round_up(count, kWordPadding);
    for (int64_t place = count; place < end; ++place) list[place] = 0;
    for (int row = 0; row < rows; ++row) {
        uint32_t* first = rest + row * stride;
        first[LongRow::kHighCount] = static_cast<uint32_t>(count);
        first[LongRow::kToFirst] = static_cast<uint32_t>(row * stride);
        std::memset(first + LongRow::kHighBytes + count, 0, kWordBytes * (end - count));
    }
}

template <class Element>
inline void quantize_groups(const Element* input, const QuantizeCall& call, uint32_t* output) {
    const int64_t groups = ceil_div(call.words, kGroupWords);
    uint32_t* scales = output + call.words;
    uint32_t* offsets = scales + groups;
    for (int64_t g = 0; g < groups; ++g) {
        const Group<Element> group{input, call.size, g * kGroup, (g + 1) * kGroup};
        const uint32_t largest = magnitudes(group).largest;
        const Scale scale(bits_float(largest), largest);
        const float sum = put_bytes(group, scale.inverse, Bytes{reinterpret_cast<int8_t*>(output)});
        scales[g] = float_bits(scale.scale);
        offsets[g] = call.format == WeightFormat::kInt4Groups ? float_bits(scale.scale * sum) : code_offset(sum);
    }
}

template <class Element>
inline void quantize_long_rows(const QuantizeCall& call) {
    const LongRow parts{call.words};
    const LongRows places(call.words, call.output_stride, call.rows, call.tiles);
    uint32_t* rest = call.output + places.rest;
    for (int row = 0; row < call.rows; ++row) {
        const auto* input = reinterpret_cast<const Element*>(call.input + row * call.input_stride);
        auto* bytes = reinterpret_cast<int8_t*>(call.output + row * places.row_stride);
        quantize_long_row(Group<Element>{input, call.size, 0, call.words * kWordBytes}, parts,
                          {bytes, places.line_stride * kWordBytes}, rest + row * places.rest_stride);
    }
    gather_high_words(parts, call.rows, rest, places.rest_stride);
}

template <class Fmt>
void quantize(const QuantizeCall& call) {
    using Element = typename Fmt::Element;
    if (scales_features(call.format)) return quantize_long_rows<Element>(call);
    for (int row = 0; row < call.rows; ++row) {
        const auto* input = reinterpret_cast<const Element*>(call.input + row * call.input_stride);
        quantize_groups(input, call, call.output + row * call.output_stride);
    }
}

}  // namespace
}  // namespace postroad
