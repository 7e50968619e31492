#include "logprobs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "row_kernels.h"
#include "row_threads.h"

namespace postroad {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kIdsPerThread = 1u << 19;  // fewer take less time than a thread takes to start
constexpr std::size_t kSample = 1024;            // logits of which the k-th highest bounds that of all

// Works on rows one after another; holds the memory that this needs.
class RowLogprobs {
public:
    RowLogprobs(const RowKernels& kernels, const LogprobCall& call, const LogprobOutput& output)
        : kernels_(kernels), call_(call), output_(output), weights_(call.vocab_size),
          block_sums_((call.vocab_size + kSumBlock - 1) / kSumBlock) {}

    void operator()(std::size_t index) {
        const float* logits = call_.logits + static_cast<std::size_t>(call_.rows[index]) * call_.vocab_size;
        const double normaliser = log_of_sum(logits);
        const std::int32_t token_id = call_.token_ids[index];
        output_.logprobs[index] = static_cast<float>(logits[token_id] - normaliser);
        output_.ranks[index] = rank(logits, token_id);
        if (call_.num_top == 0) return;
        std::int32_t* top_ids = output_.top_ids + index * call_.num_top;
        find_top(logits, top_ids);
        for (std::size_t i = 0; i < call_.num_top; ++i) {
            output_.top_logprobs[index * call_.num_top + i] = static_cast<float>(logits[top_ids[i]] - normaliser);
        }
    }

private:
    // log(sum of exp(logits)); NaN where that is no number.
    double log_of_sum(const float* logits) {
        const float highest = kernels_.highest(logits, call_.vocab_size);
        if (!std::isfinite(highest)) return std::numeric_limits<double>::quiet_NaN();
        kernels_.weigh(logits, call_.vocab_size, highest, 1.0f, -kInfinity, weights_.data(), block_sums_.data());
        double sum = 0.0;
        for (const double block : block_sums_) sum += block;
        return highest + std::log(sum);
    }

    std::int32_t rank(const float* logits, std::int32_t token_id) const {
        const float logit = logits[token_id];
        std::int32_t rank = 1;
        for (std::int32_t id = 0; id < token_id; ++id) rank += logits[id] >= logit;
        for (std::size_t id = token_id + 1; id < call_.vocab_size; ++id) rank += logits[id] > logit;
        return rank;
    }

    // All logits that are no less than the k-th highest of the first few hold the k highest of all.
    void find_top(const float* logits, std::int32_t* top_ids) {
        const std::size_t k = call_.num_top;
        sample_.assign(logits, logits + std::min(call_.vocab_size, std::max(kSample, k)));
        const auto kth = sample_.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(sample_.begin(), kth, sample_.end(), std::greater<>());
        candidates_.resize(call_.vocab_size);
        const std::size_t found = kernels_.between(logits, call_.vocab_size, *kth, kInfinity, candidates_.data());
        const auto before = [logits](std::int32_t a, std::int32_t b) {
            return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
        };
        std::partial_sort_copy(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(found), top_ids,
                               top_ids + k, before);
    }

    const RowKernels& kernels_;
    const LogprobCall& call_;
    const LogprobOutput& output_;
    std::vector<float> weights_;
    std::vector<double> block_sums_;
    std::vector<float> sample_;
    std::vector<std::int32_t> candidates_;
};

}  // namespace

void logprobs(const LogprobCall& call, int threads, const std::string& isa, const LogprobOutput& output) {
    const RowKernels& kernels = row_kernels(isa);
    const std::size_t useful = std::min({static_cast<std::size_t>(std::max(threads, 1)), call.count,
                                         1 + call.count * call.vocab_size / kIdsPerThread});
    for_each_row(call.count, useful, [&] { return RowLogprobs(kernels, call, output); });
}

}  // namespace postroad
