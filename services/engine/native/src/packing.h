// Copies of a checkpoint's tensors in the number format and layout that kernels read.
#pragma once

#include "elements.h"
#include "weights.h"

namespace postroad {

// A vector of `size` numbers, widened.
void pack_vector(const SourceTensor& tensor, int64_t size, float* values);

// Row `row` of a matrix of `columns` columns as words, half a last pair zero. words: [ceil(columns / per word)].
void pack_row(const SourceTensor& tensor, int64_t row, int64_t columns, Format format, uint32_t* words);

}  // namespace postroad
