// From logits to token ids: the same rules, in the same order, as services/engine/executor/sampler.py.
//
// Arithmetic, so that a row's token is defined exactly and depends on that row alone:
//   scaled  = (logit - highest logit) / temperature, float32
//   weight  = exp(scaled), float32 (a polynomial, at most 2 ulp off); 0 where scaled < float(log(min_p))
//   sums of weights in float64: without top_k and top_p in the order of ids, in blocks; otherwise by rank, heaviest
//   first, of equal ones the lowest id first
//   token   = the first one at which the running sum exceeds uniform * sum of all that are left
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace postroad {

// How one row is sampled. Temperature 0 takes the highest logit, of equal ones the lowest id.
struct RowParams {
    float temperature;
    std::int32_t top_k;  // 0 for no limit
    double top_p;        // 1 for no limit
    double min_p;        // 0 for no limit
    double uniform;      // in [0, 1)
};

// What changes a row's logits before all else: penalties, then bias, then forbidden ids and those that are not allowed.
struct RowEdit {
    std::int32_t row;
    double repetition_penalty = 1.0;
    double frequency_penalty = 0.0;
    double presence_penalty = 0.0;
    std::vector<std::int32_t> prompt_ids;  // for the repetition penalty alone
    std::vector<std::int32_t> output_ids;
    std::vector<std::int32_t> bias_ids;
    std::vector<float> bias_values;
    std::vector<std::int32_t> forbidden_ids;
    std::vector<std::uint32_t> allowed;  // with bit i of word w the id 32 w + i may be chosen; empty: every id may

    // Whether it does more than to leave ids out by `allowed`.
    bool changes_values() const {
        return repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0 || !bias_ids.empty() ||
               !forbidden_ids.empty();
    }
};

constexpr std::int32_t kBrokenRow = -1;

// Chooses one token per row of `logits` [rows, vocab_size], which are left as they are, on up to `threads` threads.
// tokens: [rows]; kBrokenRow where a row holds NaN or plus infinity or allows no token at all.
// At most one edit per row. isa: as for `row_kernels`; the tokens do not depend on it. Throws std::out_of_range for a row
// or an id that there is not, std::invalid_argument for words of `allowed` that are not as many as the vocabulary takes.
void sample(const float* logits, std::size_t rows, std::size_t vocab_size, const RowParams* params,
            const std::vector<RowEdit>& edits, int threads, const std::string& isa, std::int32_t* tokens);

}  // namespace postroad
