// Tensors as they come from a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

namespace postroad {

// kQ*: GGUF's blocks of 32 neighbours of a row.
//   Q4_0: float16 scale, 16 bytes; value = scale * (nibble - 8). Low nibbles are the first 16 numbers.
//   Q4_1: float16 scale, float16 minimum, 16 bytes; value = scale * nibble + minimum.
//   Q8_0: float16 scale, 32 signed bytes; value = scale * byte.
enum class SourceType { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ8_0 };

constexpr int64_t kSourceBlock = 32;

// Row-major, contiguous. Rows of blocks have a multiple of 32 columns.
struct SourceTensor {
    const void* data;
    SourceType type;
    std::vector<int64_t> shape;
};

// Bytes of a block of 32 numbers; 0 for types without blocks.
constexpr int64_t source_block_bytes(SourceType type) {
    switch (type) {
        case SourceType::kQ4_0:
            return 18;
        case SourceType::kQ4_1:
            return 20;
        case SourceType::kQ8_0:
            return 34;
        default:
            return 0;
    }
}

// One block as unsigned codes: value = scale * code + minimum, float16 both.
struct SourceBlock {
    uint8_t codes[kSourceBlock];
    uint16_t scale, minimum;
};

// Block `index` of row `row` of a tensor of `columns` columns.
SourceBlock source_block(const SourceTensor& tensor, int64_t row, int64_t columns, int64_t index);

// Row `row` of a tensor of `columns` columns, widened. values: [columns].
void source_row(const SourceTensor& tensor, int64_t row, int64_t columns, float* values);

}  // namespace postroad
