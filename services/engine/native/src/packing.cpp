#include "packing.h"

namespace postroad {
namespace {

// bf16 stays as it is; everything else is rounded from float32.
uint16_t source_bf16(const SourceTensor& tensor, int64_t index) {
    if (tensor.type == SourceType::kBf16) return static_cast<const uint16_t*>(tensor.data)[index];
    return bf16_from_float(source_value(tensor, index));
}

}  // namespace

float source_value(const SourceTensor& tensor, int64_t index) {
    switch (tensor.type) {
        case SourceType::kF32: return static_cast<const float*>(tensor.data)[index];
        case SourceType::kF16: return float_from_half(static_cast<const uint16_t*>(tensor.data)[index]);
        case SourceType::kBf16: return float_from_bf16(static_cast<const uint16_t*>(tensor.data)[index]);
    }
    return 0.0f;
}

void pack_row(const SourceTensor& tensor, int64_t row, int64_t columns, Format format, uint32_t* words) {
    const int64_t first = row * columns;
    if (format == Format::kF32) {
        for (int64_t i = 0; i < columns; ++i) words[i] = float_bits(source_value(tensor, first + i));
        return;
    }
    for (int64_t i = 0; i + 1 < columns; i += 2) {
        const uint32_t high = source_bf16(tensor, first + i + 1);
        words[i / 2] = source_bf16(tensor, first + i) | high << 16;
    }
    if (columns % 2 != 0) words[columns / 2] = source_bf16(tensor, first + columns - 1);
}

}  // namespace postroad
