// The loops over one row's whole vocabulary, for the widest vectors that the machine has. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace postroad {

constexpr std::size_t kSumBlock = 256;  // ids whose weights are summed at once

struct RowKernels {
    // kept[i] = logits[i] where bit i % 32 of words[i / 32] is set, minus infinity elsewhere. kept may be logits.
    void (*keep)(const float* logits, std::size_t n, const std::uint32_t* words, float* kept);

    // The highest of `n` logits; NaN where one of them is.
    float (*highest)(const float* logits, std::size_t n);

    // The first of `n` logits that equals `value`; n where none does.
    std::size_t (*find)(const float* logits, std::size_t n, float value);

    // weights[i] = exp((logits[i] - highest) / temperature), 0 where that exponent is below `lowest`.
    // block_sums: [ceil(n / kSumBlock)], the weights of each block added up.
    void (*weigh)(const float* logits, std::size_t n, float highest, float temperature, float lowest, float* weights,
                  double* block_sums);

    // Writes the ids of the weights in [low, high), ascending; returns how many. ids: [n].
    std::size_t (*between)(const float* weights, std::size_t n, float low, float high, std::int32_t* ids);
};

// Those for an instruction set that `supported_isas` names; "auto": for this machine. Throws std::invalid_argument for
// any other name.
const RowKernels& row_kernels(const std::string& isa);

}  // namespace postroad
