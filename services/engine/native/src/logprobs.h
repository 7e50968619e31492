// Log-probabilities of given tokens and of the most probable ones, from rows of logits.
//
//   logprob = logit - highest - log(sum of exp(logit - highest)), the sum in float64, in the order of ids, in blocks
//
// so that a row's figures depend on that row alone, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace postroad {

// What is asked of each of `count` rows of `logits` [.., vocab_size].
struct LogprobCall {
    const float* logits;
    std::size_t vocab_size;
    const std::int32_t* rows;       // [count]
    const std::int32_t* token_ids;  // [count]
    std::size_t count;
    std::size_t num_top;  // at most vocab_size
};

// Of equal logits the lowest id is the more probable one.
struct LogprobOutput {
    float* logprobs;           // [count]; NaN where the row holds NaN or plus infinity, or minus infinity alone
    std::int32_t* ranks;       // [count], from 1
    std::int32_t* top_ids;     // [count][num_top], most probable first
    float* top_logprobs;       // likewise
};

// On up to `threads` threads. isa: as for `row_kernels`; the figures do not depend on it. The caller has checked rows
// and ids.
void logprobs(const LogprobCall& call, int threads, const std::string& isa, const LogprobOutput& output);

}  // namespace postroad
