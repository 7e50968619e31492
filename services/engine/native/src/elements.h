// Number formats of weights, activations and cached keys and values, and conversions of single numbers.
//
// All products of the step have one shape: rows of 32-bit words times columns of 32-bit words. A word holds one float32,
// a pair of bfloat16 or four 8-bit integers that are neighbours along the reduced dimension.
#pragma once

#include <cstdint>
#include <cstring>

namespace postroad {

struct Bf16 {
    using Element = uint16_t;
    static constexpr int kPerWord = 2;
};

struct F32 {
    using Element = float;
    static constexpr int kPerWord = 1;
};

enum class Format { kBf16, kF32 };

// Of cached keys and values: elements as everything else, or int8 with a float32 scale per token and KV head.
enum class KvFormat { kElements, kInt8 };

// How the weights of a linear layer are stored. weight = scale * code + minimum; without a minimum codes are signed.
enum class WeightFormat {
    kElements,    // as activations are: bf16 or float32
    kInt8,        // one float32 scale per feature
    kInt8Groups,  // one float16 scale per feature and kGroup inputs
    kInt4,        // as kInt8, of codes that are step * nibble + base: bytes per feature and kGroup inputs
    kInt4Groups,  // float16 scale and minimum per feature and kGroup inputs
};
constexpr int kNumWeightFormats = 5;

// Whether a feature has one scale for all its inputs, so that products of any number of codes may be added as integers.
constexpr bool scales_features(WeightFormat format) {
    return format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
}

inline int elements_per_word(Format format) { return format == Format::kBf16 ? Bf16::kPerWord : F32::kPerWord; }

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

inline uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float bits_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// To the nearest, ties to even. NaN stays NaN.
inline uint16_t bf16_from_float(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float float_from_bf16(uint16_t bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }

inline float float_from_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    // Exact for subnormals, too: the exponent is corrected by a multiplication.
    const float scaled = bits_float(magnitude << 13) * bits_float(0x77800000u);  // times 2^112
    return bits_float(sign | float_bits(scaled));
}

// To the nearest, ties to even. NaN stays NaN; beyond the range: infinity.
inline uint16_t half_from_float(float value) {
    const uint32_t bits = float_bits(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 2^16 and above
    if (magnitude < 0x38800000u) {  // below 2^-14: multiples of 2^-24, which the sum with 1/2 rounds to
        return static_cast<uint16_t>(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace postroad
