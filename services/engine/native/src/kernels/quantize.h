// Activations to 8-bit integers, each group of neighbours by its own largest magnitude.
//
// A scale per group and not per row: a few activations of a decoder are a hundred times larger than the others, and all
// that share a scale with them lose their precision. On SmolLM2-135M a scale per row costs 4.5 % of perplexity, a scale
// per group of 32 costs 0.3 %.
#pragma once

#include "kernels/kernels.h"

namespace postroad {
namespace {

constexpr int kGroupVectors = kGroup / simd::kWidth;
constexpr float kLargestCode = 127.0f;
constexpr uint32_t kTinyMagnitude = 0x0d800000u;  // bits of 2^-100: what is smaller counts as 0

template <class Element>
inline void load_group(const Element* input, int64_t size, simd::Floats* group) {
    Element padded[kGroup] = {};
    if (size < kGroup) {
        std::memcpy(padded, input, sizeof(Element) * size);
        input = padded;
    }
    for (int v = 0; v < kGroupVectors; ++v) group[v] = simd::load_elements(input + v * simd::kWidth);
}

// Returns scale and sum of the bytes. The scale of a group in which a number is not finite is not finite either.
struct GroupScale {
    float scale, sum;
};

inline GroupScale quantize_group(const simd::Floats* group, int8_t* bytes) {
    simd::Words magnitudes = simd::magnitude(group[0]);  // as integers: infinity and NaN are the largest
    for (int v = 1; v < kGroupVectors; ++v) {
        magnitudes = simd::max_integers(magnitudes, simd::magnitude(group[v]));
    }
    const uint32_t bits = simd::largest_integer(magnitudes);
    const float largest = bits_float(bits);
    const simd::Floats inverse = simd::broadcast(bits < kTinyMagnitude ? 0.0f : kLargestCode / largest);
    simd::Floats sums = simd::zero();
    for (int v = 0; v < kGroupVectors; ++v) {
        const simd::Floats rounded = simd::round_nearest(simd::mul(group[v], inverse));
        sums = simd::add(sums, rounded);  // exact
        simd::store_bytes(bytes + v * simd::kWidth, rounded);
    }
    return {largest / kLargestCode, simd::sum(sums)};
}

inline uint32_t weight_offset(WeightFormat format, const GroupScale& group) {
    if (format == WeightFormat::kInt4) return float_bits(group.scale * group.sum);
    const bool is_finite = group.sum == group.sum;
    return static_cast<uint32_t>(-kCodeBias * (is_finite ? static_cast<int32_t>(group.sum) : 0));
}

template <class Fmt>
void quantize(const QuantizeCall& call) {
    const auto* input = static_cast<const typename Fmt::Element*>(call.input);
    auto* bytes = reinterpret_cast<int8_t*>(call.output);
    const int64_t groups = call.words / kGroupWords;
    uint32_t* scales = call.output + call.words;
    uint32_t* offsets = scales + groups;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t rest = call.size - g * kGroup;
        simd::Floats group[kGroupVectors];
        load_group(input + (rest > 0 ? g * kGroup : 0), rest < 0 ? 0 : rest, group);
        const GroupScale scale = quantize_group(group, bytes + g * kGroup);
        scales[g] = float_bits(scale.scale);
        offsets[g] = weight_offset(call.format, scale);
    }
}

}  // namespace
}  // namespace postroad
