#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "nibble_fit.h"

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

// Whether numbers can be divided by a scale: it is neither 0 nor NaN nor infinite.
bool is_usable(float scale) { return scale > 0.0f && scale <= std::numeric_limits<float>::max(); }

// codes = zero + (value - minimum) / scale, rounded, within [lowest, highest]; `zero` for a scale that is not usable.
void fill_codes(const float* values, float minimum, float scale, float lowest, float highest, int zero,
                uint8_t* codes) {
    constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction
    if (!is_usable(scale)) {
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

// Numbers on the grid of 8-bit codes as steps of it. values: of the group's `size`, which is at least 1.
void fill_int4_group(const float* values, int64_t size, float scale, WeightGroup& group) {
    group = {};
    if (!is_usable(scale)) return;
    float numbers[kGroup];
    for (int i = 0; i < kGroup; ++i) {
        const float value = values[std::min<int64_t>(i, size - 1)];
        numbers[i] = std::min(std::max(value / scale, -kLargestInt8), kLargestInt8);
    }
    const NibbleFit fit = fit_nibbles(numbers);
    std::copy_n(fit.codes, kGroup, group.codes);
    group.step = static_cast<uint8_t>(fit.step);
    group.base = static_cast<int8_t>(fit.base);
}

// Numbers from the smallest to the largest of the group's `size`.
void fill_int4_groups_group(const float* values, int64_t size, WeightGroup& group) {
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
            return format == WeightFormat::kInt4Groups;
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

void fill_group(const float* values, int64_t size, WeightFormat format, float row_scale, WeightGroup& group) {
    switch (format) {
        case WeightFormat::kInt8:
            return fill_int8_codes(values, row_scale, group);
        case WeightFormat::kInt8Groups:
            group.scale = half_from_float(largest_magnitude(values, size) / kLargestInt8);
            return fill_int8_codes(values, float_from_half(group.scale), group);
        case WeightFormat::kInt4:
            return fill_int4_group(values, size, row_scale, group);
        case WeightFormat::kInt4Groups:
            return fill_int4_groups_group(values, size, group);
        case WeightFormat::kElements:
            return;
    }
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
    std::fill(result.groups.begin() + columns / kGroup, result.groups.end(), WeightGroup{});
    if (holds_blocks_of(format, tensor.type)) return take_blocks(tensor, row, columns, result);
    std::vector<float> values(round_up(columns, kGroup));
    source_row(tensor, row, columns, values.data());
    if (scales_features(format)) result.scale = largest_magnitude(values.data(), columns) / kLargestInt8;
    for (int64_t first = 0; first < columns; first += kGroup) {
        fill_group(values.data() + first, std::min<int64_t>(kGroup, columns - first), format, result.scale,
                   result.groups[first / kGroup]);
    }
}

void store_group(const WeightGroup& group, WeightFormat format, uint32_t* block, int column) {
    auto* bytes = reinterpret_cast<uint8_t*>(block + column);
    constexpr int kRow = kPanel * sizeof(uint32_t);  // bytes from one word of a column to the next
    if (has_nibbles(format)) {
        for (int i = 0; i < kGroup; ++i) {
            uint8_t& pair = bytes[i / 8 * kRow + i % 4];
            pair = static_cast<uint8_t>(i % 8 < 4 ? group.codes[i] : pair | group.codes[i] << 4);
        }
    } else {
        for (int i = 0; i < kGroup; ++i) bytes[i / 4 * kRow + i % 4] = static_cast<uint8_t>(group.codes[i] - kCodeBias);
    }
    if (format == WeightFormat::kInt8) return;
    auto* halves = reinterpret_cast<uint16_t*>(block + code_words(format));
    if (format == WeightFormat::kInt4) {
        auto* pair = reinterpret_cast<uint8_t*>(halves + column);
        pair[0] = group.step;
        pair[1] = static_cast<uint8_t>(group.base);
        return;
    }
    halves[column] = group.scale;
    if (format == WeightFormat::kInt4Groups) halves[kPanel + column] = group.minimum;
}

float block_weight(const uint32_t* block, WeightFormat format, int column, int index) {
    constexpr int kRow = kPanel * sizeof(uint32_t);
    const auto* bytes = reinterpret_cast<const uint8_t*>(block + column);
    const auto* halves = reinterpret_cast<const uint16_t*>(block + code_words(format)) + column;
    if (!has_nibbles(format)) {
        const auto weight = static_cast<float>(static_cast<int8_t>(bytes[index / 4 * kRow + index % 4]));
        return format == WeightFormat::kInt8 ? weight : weight * float_from_half(*halves);
    }
    const uint8_t pair = bytes[index / 8 * kRow + index % 4];
    const int nibble = index % 8 < 4 ? pair & 0xf : pair >> 4;
    if (format == WeightFormat::kInt4) {
        const auto* step = reinterpret_cast<const uint8_t*>(halves);
        return static_cast<float>(step[0] * nibble + static_cast<int8_t>(step[1]));
    }
    return float_from_half(halves[0]) * static_cast<float>(nibble) + float_from_half(halves[kPanel]);
}

}  // namespace postroad
