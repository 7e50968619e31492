// Activations to 8-bit integers, groups of neighbours by a scale of their own.
//
// A few activations of a decoder are a hundred times larger than the others, and all that share a scale with them lose
// their precision: on SmolLM2-135M a scale per row costs six times as much (in Kullback-Leibler divergence of the
// predictions) as a scale per 32 neighbours. But the shorter a group, the more often sums of integers have to become
// numbers. So groups are long where weights allow it, where there are outliers their scale is made for the many, and the
// few that do not fit one byte get a second one: then little more is lost than with groups of 32.
#pragma once

#include "kernels/kernels.h"

namespace postroad {
namespace {

constexpr float kLargestCode = 127.0f;
constexpr float kOutlierRatio = 8.0f;  // of a group's largest magnitude to the root of its mean square: normal
                                       // distributions stay below 4
constexpr float kSpread = 7.5f;        // mean magnitudes that fit one byte where there are outliers
constexpr uint32_t kTinyMagnitude = 0x0d800000u;  // bits of 2^-100: what is smaller counts as 0

// Calls body(vector, index of its first element) for elements [first, last); what lies beyond `size` is 0.
template <class Element, class Body>
inline void for_each_vector(const Element* input, int64_t size, int64_t first, int64_t last, const Body& body) {
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

// Scale and sum of a level's bytes. The scale of a group in which a number is not finite is not finite either.
struct GroupScale {
    float scale, sum;
};

// Elements [first, last) of a row, 0 from `size` on.
template <class Element>
struct Group {
    const Element* input;
    int64_t size, first, last;

    template <class Body>
    void for_each(const Body& body) const {
        for_each_vector(input, size, first, last, body);
    }
};

struct Magnitudes {
    uint32_t largest;  // bits
    float sum, squares;
};

template <class Element>
inline Magnitudes magnitudes(const Group<Element>& group) {
    simd::Words largest = simd::zero_words();  // as integers: infinity and NaN are the largest
    simd::Floats sums = simd::zero(), squares = simd::zero();
    group.for_each([&](simd::Floats x, int64_t) {
        largest = simd::max_integers(largest, simd::magnitude(x));
        sums = simd::add(sums, simd::max(x, simd::sub(simd::zero(), x)));
        squares = simd::fma(x, x, squares);
    });
    return {simd::largest_integer(largest), simd::sum(sums), simd::sum(squares)};
}

// The largest magnitude that one byte is to hold; where a number is not finite, that one.
inline float largest_of_byte(const Magnitudes& found, float size) {
    const float largest = bits_float(found.largest);
    if (!(largest * largest * size > kOutlierRatio * kOutlierRatio * found.squares)) return largest;
    const float spread = kSpread * found.sum / size, least = largest / kHighStep;
    if (!(spread < largest)) return largest;
    return spread > least ? spread : least;
}

// The high byte of whole numbers, which is 0 where one byte holds them: a 128th, rounded towards 0.
inline simd::Floats high_part(simd::Floats whole) {
    const simd::Floats part = simd::mul(whole, simd::broadcast(1.0f / kHighStep)), none = simd::zero();
    const simd::Floats margin = simd::broadcast(63.5f / kHighStep);
    return simd::round_nearest(
        simd::add(simd::max(simd::sub(part, margin), none), simd::min(simd::add(part, margin), none)));
}

struct Quantized {
    float low_sum = 0.0f, high_sum = 0.0f;
    uint32_t steps = 0;  // a bit for each that has high bytes
};

// A group's bytes, counted from the row's first one, by the inverse of their scale. Numbers of more than a byte, if
// there are any, have a high byte, too.
template <bool kHigh, class Element>
inline Quantized quantize_group(const Group<Element>& group, float inverse, int8_t* low_bytes, int8_t* high_bytes) {
    constexpr int64_t kStep = kStepWords * int64_t{sizeof(uint32_t)};
    const uint32_t largest_code = float_bits(kLargestCode);
    const simd::Floats inverses = simd::broadcast(inverse);
    simd::Floats low_sums = simd::zero(), high_sums = simd::zero();  // exact
    Quantized result;
    group.for_each([&](simd::Floats x, int64_t i) {
        simd::Floats low = simd::round_nearest(simd::mul(x, inverses));
        if constexpr (kHigh) {
            simd::Floats high = simd::zero();
            if (simd::any_above(simd::magnitude(low), static_cast<int>(largest_code))) {
                high = high_part(low);
                low = simd::sub(low, simd::mul(high, simd::broadcast(kHighStep)));
                high_sums = simd::add(high_sums, high);
                result.steps |= uint32_t{1} << (i - group.first) / kStep;
            }
            simd::store_bytes(high_bytes + i, high);
        }
        low_sums = simd::add(low_sums, low);
        simd::store_bytes(low_bytes + i, low);
    });
    result.low_sum = simd::sum(low_sums);
    result.high_sum = simd::sum(high_sums);
    return result;
}

inline uint32_t weight_offset(WeightFormat format, const GroupScale& group) {
    if (format == WeightFormat::kInt4Groups) return float_bits(group.scale * group.sum);
    const bool is_finite = group.sum == group.sum;
    return static_cast<uint32_t>(-kCodeBias * (is_finite ? static_cast<int32_t>(group.sum) : 0));
}

template <class Fmt>
void quantize(const QuantizeCall& call) {
    using Element = typename Fmt::Element;
    constexpr int64_t kWordBytes = sizeof(uint32_t);
    const int levels = activation_levels(call.format);
    const int64_t groups = ceil_div(call.words, call.group_words);
    auto* bytes = reinterpret_cast<int8_t*>(call.output);
    uint32_t* scales = call.output + levels * call.words;
    uint32_t* offsets = scales + levels * groups;
    uint32_t* steps = offsets + levels * groups;
    const auto put = [&](int64_t index, const GroupScale& group) {
        scales[index] = float_bits(group.scale);
        offsets[index] = weight_offset(call.format, group);
    };
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * call.group_words;
        const int64_t last = first + call.group_words < call.words ? first + call.group_words : call.words;
        const Group<Element> group{static_cast<const Element*>(call.input), call.size, first * kWordBytes,
                                   last * kWordBytes};
        const Magnitudes found = magnitudes(group);
        const float largest = bits_float(found.largest);
        const int64_t size = (call.size < last * kWordBytes ? call.size : last * kWordBytes) - first * kWordBytes;
        const float top = levels > 1 ? largest_of_byte(found, static_cast<float>(size)) : largest;
        const float scale = top / kLargestCode, inverse = found.largest < kTinyMagnitude ? 0.0f : kLargestCode / top;
        int8_t* high_bytes = bytes + call.words * kWordBytes;
        const bool has_high = top < largest && inverse > 0.0f;
        const Quantized made = has_high ? quantize_group<true>(group, inverse, bytes, high_bytes)
                                        : quantize_group<false>(group, inverse, bytes, high_bytes);
        put(g, {scale, made.low_sum});
        if (levels == 1) continue;
        put(groups + g, has_high ? GroupScale{scale * kHighStep, made.high_sum} : GroupScale{});
        steps[g] = made.steps;
    }
}

}  // namespace
}  // namespace postroad
