// Copies of a checkpoint's tensors in the number format and layout that kernels read.
#pragma once

#include <vector>

#include "elements.h"
#include "kernels/kernels.h"
#include "source_tensor.h"

namespace postroad {

// Row `row` of a matrix of `columns` columns as words, half a last pair zero. words: [ceil(columns / per word)].
void pack_row(const SourceTensor& tensor, int64_t row, int64_t columns, Format format, uint32_t* words);

// A group of a feature's weights as integers, see WeightFormat. Codes of 8 bits are kCodeBias larger than as stored.
struct WeightGroup {
    uint8_t codes[kGroup];
    uint16_t scale = 0, minimum = 0;  // float16; of formats that have them
    uint8_t step = 1;                 // of WeightFormat::kInt4
    int8_t base = 0;
};

struct IntegerRow {
    std::vector<WeightGroup> groups;
    float scale = 0.0f;  // of formats that scale features
};

// Row `row` of a matrix as integers of `format`; codes beyond the last column are anything. Blocks like a format's own
// are taken as they are: Q8_0 for kInt8Groups, Q4_0 and Q4_1 for kInt4Groups. A scale is NaN where a weight is not
// finite. row.groups has its size, at least ceil(columns / kGroup).
void quantize_row(const SourceTensor& tensor, int64_t row, int64_t columns, WeightFormat format, IntegerRow& result);

// Puts a group into column `column` of its panel's block.
void store_group(const WeightGroup& group, WeightFormat format, uint32_t* block, int column);

// The weight of group input `index` in column `column` of a block, without a feature's scale.
float block_weight(const uint32_t* block, WeightFormat format, int column, int index);

}  // namespace postroad
