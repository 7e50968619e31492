#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace postroad {
namespace {

constexpr float kLargestInt8 = 127.0f;
constexpr float kLargestInt4 = 15.0f;

// 0 where all values are finite, else NaN.
float not_finite(const float* values, int64_t size) {
    float zero = 0.0f;
    for (int64_t i = 0; i < size; ++i) zero += values[i] * 0.0f;
    return zero;
}

float largest_magnitude(const float* values, int64_t size) {
    float largest = 0.0f;
    for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::fabs(values[i]));
    return largest + not_finite(values, size);
}

// codes = zero + (value - minimum) / scale, rounded, within [lowest, highest]; `zero` for a scale of 0 or none.
void fill_codes(const float* values, float minimum, float scale, float lowest, float highest, int zero,
                uint8_t* codes) {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction
    if (!(scale > 0.0f && scale <= std::numeric_limits<float>::max())) {
        std::fill_n(codes, kGroup, static_cast<uint8_t>(zero));
        return;
    }
    for (int i = 0; i < kGroup; ++i) {
        const float quotient = std::min(std::max((values[i] - minimum) / scale, lowest), highest);
        codes[i] = static_cast<uint8_t>(zero + static_cast<int>(quotient + kRounder - kRounder));
    }
}

void fill_int8_codes(const float* values, float scale, WeightGroup& group) {
    fill_codes(values, 0.0f, scale, -kLargestInt8, kLargestInt8, kCodeBias, group.codes);
}

// Numbers from the smallest to the largest of the group's `size`.
void fill_int4_group(const float* values, int64_t size, WeightGroup& group) {
    const auto [smallest, largest] = std::minmax_element(values, values + size);
    const float none = not_finite(values, size);
    group.minimum = half_from_float(*smallest + none);
    group.scale = half_from_float((*largest - *smallest) / kLargestInt4 + none);
    fill_codes(values, float_from_half(group.minimum), float_from_half(group.scale), 0.0f, kLargestInt4, 0,
               group.codes);
}

bool holds_blocks_of(WeightFormat format, SourceType type) {
    switch (type) {
        case SourceType::kQ4_0:
        case SourceType::kQ4_1:
            return format == WeightFormat::kInt4;
        case SourceType::kQ8_0:
            return format == WeightFormat::kInt8Groups;
        default:
            return false;
    }
}

void take_blocks(const SourceTensor& tensor, int64_t row, int64_t columns, IntegerRow& result) {
    static_assert(kGroup == kSourceBlock);
    for (int64_t g = 0; g < columns / kGroup; ++g) {
        const SourceBlock block = source_block(tensor, row, columns, g);
        WeightGroup& group = result.groups[g];
        std::copy_n(block.codes, kGroup, group.codes);
        group.scale = block.scale;
        group.minimum = block.minimum;
    }
}

// A group beyond the last column, where activations are 0.
WeightGroup empty_group(WeightFormat format) {
    WeightGroup group;
    std::fill_n(group.codes, kGroup, static_cast<uint8_t>(format == WeightFormat::kInt4 ? 0 : kCodeBias));
    return group;
}

}  // namespace

void pack_row(const SourceTensor& tensor, int64_t row, int64_t columns, Format format, uint32_t* words) {
    if (format == Format::kBf16 && tensor.type == SourceType::kBf16) {
        // On little-endian machines, which all of ours are, neighbours in memory are a word.
        std::memcpy(words, static_cast<const uint16_t*>(tensor.data) + row * columns, sizeof(uint16_t) * columns);
        return;
    }
    if (format == Format::kF32) return source_row(tensor, row, columns, reinterpret_cast<float*>(words));
    thread_local std::vector<float> values;
    values.resize(columns);
    source_row(tensor, row, columns, values.data());
    auto* elements = reinterpret_cast<uint16_t*>(words);
    for (int64_t i = 0; i < columns; ++i) elements[i] = bf16_from_float(values[i]);
}

void quantize_row(const SourceTensor& tensor, int64_t row, int64_t columns, WeightFormat format, IntegerRow& result) {
    std::fill(result.groups.begin() + columns / kGroup, result.groups.end(), empty_group(format));
    if (holds_blocks_of(format, tensor.type)) return take_blocks(tensor, row, columns, result);
    std::vector<float> values(round_up(columns, kGroup));
    source_row(tensor, row, columns, values.data());
    if (format == WeightFormat::kInt8) result.scale = largest_magnitude(values.data(), columns) / kLargestInt8;
    for (int64_t g = 0; g < ceil_div(columns, kGroup); ++g) {
        const float* some = values.data() + g * kGroup;
        WeightGroup& group = result.groups[g];
        if (format == WeightFormat::kInt4) {
            fill_int4_group(some, std::min<int64_t>(kGroup, columns - g * kGroup), group);
        } else if (format == WeightFormat::kInt8) {
            fill_int8_codes(some, result.scale, group);
        } else {
            group.scale = half_from_float(largest_magnitude(some, kGroup) / kLargestInt8);
            fill_int8_codes(some, float_from_half(group.scale), group);
        }
    }
}

void store_group(const WeightGroup& group, WeightFormat format, uint32_t* block, int column) {
    auto* bytes = reinterpret_cast<uint8_t*>(block + column);
    constexpr int kRow = kPanel * sizeof(uint32_t);  // bytes from one word of a column to the next
    if (format == WeightFormat::kInt4) {
        for (int i = 0; i < kGroup; ++i) {
            uint8_t& pair = bytes[i / 8 * kRow + i % 4];
            pair = static_cast<uint8_t>(i % 8 < 4 ? group.codes[i] : pair | group.codes[i] << 4);
        }
    } else {
        for (int i = 0; i < kGroup; ++i) bytes[i / 4 * kRow + i % 4] = static_cast<uint8_t>(group.codes[i] - kCodeBias);
    }
    if (format == WeightFormat::kInt8) return;
    const int code_words = format == WeightFormat::kInt4 ? kGroupWords / 2 : kGroupWords;
    auto* halves = reinterpret_cast<uint16_t*>(block + code_words * kPanel);
    halves[column] = group.scale;
    if (format == WeightFormat::kInt4) halves[kPanel + column] = group.minimum;
}

float block_weight(const uint32_t* block, WeightFormat format, int column, int index) {
    constexpr int kRow = kPanel * sizeof(uint32_t);
    const auto* bytes = reinterpret_cast<const uint8_t*>(block + column);
    if (format == WeightFormat::kInt4) {
        const auto* halves = reinterpret_cast<const uint16_t*>(block + kGroupWords / 2 * kPanel);
        const uint8_t pair = bytes[index / 8 * kRow + index % 4];
        const int nibble = index % 8 < 4 ? pair & 0xf : pair >> 4;
        return float_from_half(halves[column]) * static_cast<float>(nibble) + float_from_half(halves[kPanel + column]);
    }
    const auto weight = static_cast<float>(static_cast<int8_t>(bytes[index / 4 * kRow + index % 4]));
    if (format == WeightFormat::kInt8) return weight;
    return weight * float_from_half(reinterpret_cast<const uint16_t*>(block + kGroupWords * kPanel)[column]);
}

}  // namespace postroad
