// Copies of a checkpoint's tensors in the number format and layout that kernels read.
#pragma once

#include "elements.h"
#include "weights.h"

namespace postroad {

// Number `index` of a tensor, widened.
float source_value(const SourceTensor& tensor, int64_t index);

// Row `row` of a matrix of `columns` columns as words, zero beyond the last column. words: [ceil(columns / per word)].
void pack_row(const SourceTensor& tensor, int64_t row, int64_t columns, Format format, uint32_t* words);

}  // namespace postroad
