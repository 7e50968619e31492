// A row's tokens by weight, heaviest first, of equal ones the lowest id first, without sorting them.
//
// Weights are put into buckets by the leading bits of their float, which order as the weights do. What is asked for
// lies in one bucket, and only that one is looked at closely, by halving it with nth_element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_kernels.h"

namespace postroad {

// The leading tokens of a ranking: how many, how heavy together, and the last of them.
struct Prefix {
    std::size_t count = 0;
    double mass = 0.0;
    std::int32_t last_id = -1;
};

class Ranking {
public:
    explicit Ranking(const RowKernels& kernels) : kernels_(kernels) {}

    // weights: [n], 0 or normal floats up to 1, at least one of them not 0; to be kept while the ranking is used. Those of weight 0 are
    // not ranked.
    void reset(const float* weights, std::size_t n);

    // The shortest prefix of at least `count` tokens, or more than `mass` of weight (at least it, if `or_equal`);
    // all tokens where no prefix reaches either.
    Prefix until(std::size_t count, double mass, bool or_equal);

private:
    using Bucket = double __attribute__((vector_size(16)));  // mass and number of its tokens, added to in one go

    void collect(std::size_t bucket);
    double mass_of(std::size_t first, std::size_t last) const;

    const RowKernels& kernels_;
    const float* weights_ = nullptr;
    std::size_t n_ = 0;
    std::vector<Bucket> buckets_;
    std::vector<std::int32_t> ids_;    // of the tokens of one bucket
    std::vector<std::uint64_t> keys_;  // likewise: inverted bits of the weight, then the id
};

}  // namespace postroad
