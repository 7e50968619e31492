// Activations to 8-bit integers, each group of neighbours by its own largest magnitude.
//
// A few activations of a decoder are a hundred times larger than the others, and all that share a scale with them lose
// their precision: on SmolLM2-135M a scale per row costs six times as much (in Kullback-Leibler divergence of the
// predictions) as a scale per 32 neighbours, scales per 256 three times as much. But the shorter a group, the more often
// sums of integers have to become numbers. So groups are long where weights allow it, and those with such outliers get
// a second level of bytes, which holds what the first rounded off: a quarter of the groups of that model, which then
// costs less than groups of 32.
#pragma once

#include "kernels/kernels.h"

namespace postroad {
namespace {

constexpr float kLargestCode = 127.0f;
constexpr float kLevelRatio = 2.0f * kLargestCode;  // of the second level's steps to the first one's: half a step is 127
constexpr float kOutlierRatio = 8.0f;  // of a group's largest magnitude to the root of its mean square: normal
                                       // distributions stay below 4
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
    bool has_outlier;
};

template <class Element>
inline Magnitudes magnitudes(const Group<Element>& group) {
    simd::Words largest = simd::zero_words();  // as integers: infinity and NaN are the largest
    simd::Floats squares = simd::zero();
    group.for_each([&](simd::Floats x, int64_t) {
        largest = simd::max_integers(largest, simd::magnitude(x));
        squares = simd::fma(x, x, squares);
    });
    const uint32_t bits = simd::largest_integer(largest);
    const float size = static_cast<float>(group.last - group.first), magnitude = bits_float(bits);
    return {bits, magnitude * magnitude * size > kOutlierRatio * kOutlierRatio * simd::sum(squares)};
}

// A group's bytes, counted from the row's first one, by the inverse of their scale.
template <class Element>
inline float quantize_group(const Group<Element>& group, float inverse, int8_t* bytes) {
    const simd::Floats inverses = simd::broadcast(inverse);
    simd::Floats sums = simd::zero();
    group.for_each([&](simd::Floats x, int64_t i) {
        const simd::Floats rounded = simd::round_nearest(simd::mul(x, inverses));
        sums = simd::add(sums, rounded);  // exact
        simd::store_bytes(bytes + i, rounded);
    });
    return simd::sum(sums);
}

// Likewise the second level: what `quantize_group` rounded off.
template <class Element>
inline float quantize_rest(const Group<Element>& group, float inverse, int8_t* bytes) {
    const simd::Floats inverses = simd::broadcast(inverse), ratio = simd::broadcast(kLevelRatio);
    simd::Floats sums = simd::zero();
    group.for_each([&](simd::Floats x, int64_t i) {
        const simd::Floats scaled = simd::mul(x, inverses);
        const simd::Floats rest = simd::sub(scaled, simd::round_nearest(scaled));
        const simd::Floats rounded = simd::round_nearest(simd::mul(rest, ratio));
        sums = simd::add(sums, rounded);
        simd::store_bytes(bytes + i, rounded);
    });
    return simd::sum(sums);
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
        const float largest = bits_float(found.largest), scale = largest / kLargestCode;
        const float inverse = found.largest < kTinyMagnitude ? 0.0f : kLargestCode / largest;
        put(g, {scale, quantize_group(group, inverse, bytes)});
        if (levels == 1) continue;
        const bool has_rest = found.has_outlier && inverse > 0.0f;
        int8_t* rest = bytes + call.words * kWordBytes;
        put(groups + g, has_rest ? GroupScale{scale / kLevelRatio, quantize_rest(group, inverse, rest)} : GroupScale{});
    }
}

}  // namespace
}  // namespace postroad
