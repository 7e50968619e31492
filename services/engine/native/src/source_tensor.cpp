#include "source_tensor.h"

#include <cstring>

#include "elements.h"

namespace postroad {
namespace {

uint16_t half_at(const uint8_t* bytes) {
    uint16_t half;
    std::memcpy(&half, bytes, sizeof half);
    return half;
}

void nibbles(const uint8_t* bytes, uint8_t* codes) {
    for (int64_t i = 0; i < kSourceBlock / 2; ++i) {
        codes[i] = bytes[i] & 0xf;
        codes[i + kSourceBlock / 2] = bytes[i] >> 4;
    }
}

void block_values(const SourceBlock& block, SourceType type, float* values) {
    const float scale = float_from_half(block.scale);
    // Q8_0 is widened without its minimum, which may have left the range of float16.
    const int zero = type == SourceType::kQ8_0 ? 128 : 0;
    const float minimum = type == SourceType::kQ8_0 ? 0.0f : float_from_half(block.minimum);
    for (int64_t i = 0; i < kSourceBlock; ++i) values[i] = scale * static_cast<float>(block.codes[i] - zero) + minimum;
}

// The minimum -zero * scale: exact, as `zero` is a power of two.
uint16_t minimum_of(uint16_t scale, float zero) { return half_from_float(-zero * float_from_half(scale)); }

}  // namespace

SourceBlock source_block(const SourceTensor& tensor, int64_t row, int64_t columns, int64_t index) {
    const auto* bytes = static_cast<const uint8_t*>(tensor.data) +
                        (row * (columns / kSourceBlock) + index) * source_block_bytes(tensor.type);
    SourceBlock block{};
    block.scale = half_at(bytes);
    switch (tensor.type) {
        case SourceType::kQ4_0:
            block.minimum = minimum_of(block.scale, 8.0f);
            nibbles(bytes + 2, block.codes);
            break;
        case SourceType::kQ4_1:
            block.minimum = half_at(bytes + 2);
            nibbles(bytes + 4, block.codes);
            break;
        case SourceType::kQ8_0:
            block.minimum = minimum_of(block.scale, 128.0f);
            for (int64_t i = 0; i < kSourceBlock; ++i) block.codes[i] = static_cast<uint8_t>(bytes[2 + i] ^ 0x80);
            break;
        default:
            break;
    }
    return block;
}

void source_row(const SourceTensor& tensor, int64_t row, int64_t columns, float* values) {
    const auto* halves = static_cast<const uint16_t*>(tensor.data) + row * columns;
    switch (tensor.type) {
        case SourceType::kF32:
            std::memcpy(values, static_cast<const float*>(tensor.data) + row * columns, sizeof(float) * columns);
            return;
        case SourceType::kF16:
            for (int64_t i = 0; i < columns; ++i) values[i] = float_from_half(halves[i]);
            return;
        case SourceType::kBf16:
            for (int64_t i = 0; i < columns; ++i) values[i] = float_from_bf16(halves[i]);
            return;
        default:
            for (int64_t i = 0; i < columns; i += kSourceBlock) {
                block_values(source_block(tensor, row, columns, i / kSourceBlock), tensor.type, values + i);
            }
    }
}

}  // namespace postroad
