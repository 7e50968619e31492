#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "ranking.h"
#include "row_kernels.h"
#include "row_threads.h"

namespace postroad {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kIdsPerWord = 32;          // of a grammar's mask
constexpr std::size_t kIdsPerThread = 1u << 19;  // fewer take less time than a thread takes to start

// Samples rows one after another; holds the memory that this needs.
class RowSampler {
public:
    RowSampler(const RowKernels& kernels, std::size_t vocab_size)
        : kernels_(kernels), vocab_size_(vocab_size), ranking_(kernels) {}

    std::int32_t sample(const float* logits, const RowParams& params, const RowEdit* edit) {
        if (edit != nullptr) logits = edited(logits, *edit);
        const float highest = kernels_.highest(logits, vocab_size_);
        if (!std::isfinite(highest)) return kBrokenRow;
        if (!(params.temperature > 0.0f)) {
            return static_cast<std::int32_t>(kernels_.find(logits, vocab_size_, highest));
        }
        weigh(logits, highest, params, edit != nullptr ? edit->allowed : everything_);
        const std::size_t top_k = params.top_k > 0 ? static_cast<std::size_t>(params.top_k) : vocab_size_;
        return top_k < vocab_size_ || params.top_p < 1.0 ? draw_by_rank(top_k, params) : draw_by_id(params.uniform);
    }

private:
    const float* edited(const float* logits, const RowEdit& edit);
    void penalise_repetition(double penalty, const std::vector<std::int32_t>& ids);
    void penalise_output(const RowEdit& edit);
    void weigh(const float* logits, float highest, const RowParams& params, const std::vector<std::uint32_t>& allowed);
    std::int32_t draw_by_id(double uniform) const;
    std::int32_t draw_by_rank(std::size_t top_k, const RowParams& params);

    double total() const {
        double sum = 0.0;
        for (const double block : block_sums_) sum += block;
        return sum;
    }

    // Below the total even where the product is rounded up to it, or no token would lie beyond it.
    static double target(double uniform, double total) {
        return std::min(uniform * total, std::nextafter(total, 0.0));
    }

    const RowKernels& kernels_;
    std::size_t vocab_size_;
    const std::vector<std::uint32_t> everything_;  // as RowEdit::allowed says it
    std::vector<float> logits_;  // a copy of the row where it is edited
    std::vector<float> weights_;
    std::vector<double> block_sums_;
    std::vector<std::int32_t> counts_;  // by id; all 0 between uses
    Ranking ranking_;
};

const float* RowSampler::edited(const float* logits, const RowEdit& edit) {
    logits_.resize(vocab_size_);
    if (!edit.allowed.empty() && !edit.changes_values()) {
        kernels_.keep(logits, vocab_size_, edit.allowed.data(), logits_.data());
        return logits_.data();
    }
    std::copy(logits, logits + vocab_size_, logits_.begin());
    counts_.resize(vocab_size_);
    if (edit.repetition_penalty != 1.0) {
        penalise_repetition(edit.repetition_penalty, edit.prompt_ids);
        penalise_repetition(edit.repetition_penalty, edit.output_ids);
        for (const std::int32_t id : edit.prompt_ids) counts_[id] = 0;
        for (const std::int32_t id : edit.output_ids) counts_[id] = 0;
    }
    if (edit.frequency_penalty != 0.0 || edit.presence_penalty != 0.0) penalise_output(edit);
    for (std::size_t i = 0; i < edit.bias_ids.size(); ++i) logits_[edit.bias_ids[i]] += edit.bias_values[i];
    for (const std::int32_t id : edit.forbidden_ids) logits_[id] = -kInfinity;
    if (!edit.allowed.empty()) kernels_.keep(logits_.data(), vocab_size_, edit.allowed.data(), logits_.data());
    return logits_.data();
}

// Once per id, however often it stands there; counts_ holds which were met.
void RowSampler::penalise_repetition(double penalty, const std::vector<std::int32_t>& ids) {
    const auto factor = static_cast<float>(penalty);
    for (const std::int32_t id : ids) {
        if (counts_[id]++ > 0) continue;
        logits_[id] = logits_[id] > 0.0f ? logits_[id] / factor : logits_[id] * factor;
    }
}

void RowSampler::penalise_output(const RowEdit& edit) {
    for (const std::int32_t id : edit.output_ids) ++counts_[id];
    for (const std::int32_t id : edit.output_ids) {
        if (counts_[id] == 0) continue;
        logits_[id] -= static_cast<float>(edit.frequency_penalty * counts_[id] + edit.presence_penalty);
        counts_[id] = 0;
    }
}

// Fills weights_ and block_sums_. A grammar's mask mostly leaves whole blocks out; their weights are 0 without a look.
void RowSampler::weigh(const float* logits, float highest, const RowParams& params,
                       const std::vector<std::uint32_t>& allowed) {
    weights_.resize(vocab_size_);
    block_sums_.resize((vocab_size_ + kSumBlock - 1) / kSumBlock);
    const float lowest = params.min_p > 0.0 ? static_cast<float>(std::log(params.min_p)) : -kInfinity;
    const auto weigh_from = [&](std::size_t start, std::size_t count) {
        kernels_.weigh(logits + start, count, highest, params.temperature, lowest, weights_.data() + start,
                       block_sums_.data() + start / kSumBlock);
    };
    if (allowed.empty()) return weigh_from(0, vocab_size_);
    for (std::size_t start = 0; start < vocab_size_; start += kSumBlock) {
        const std::size_t end = std::min(start + kSumBlock, vocab_size_);
        const auto first = allowed.begin() + start / kIdsPerWord;
        const auto last = allowed.begin() + (end + kIdsPerWord - 1) / kIdsPerWord;
        if (std::all_of(first, last, [](std::uint32_t word) { return word == 0; })) {
            std::fill(weights_.begin() + start, weights_.begin() + end, 0.0f);
            block_sums_[start / kSumBlock] = 0.0;
        } else {
            weigh_from(start, end - start);
        }
    }
}

std::int32_t RowSampler::draw_by_id(double uniform) const {
    const double wanted = target(uniform, total());
    double sum = 0.0;
    std::size_t last = 0;  // the last token that can be drawn, should sums in another order fall short
    for (std::size_t block = 0; block < block_sums_.size(); ++block) {
        if (block_sums_[block] == 0.0) continue;
        const std::size_t start = block * kSumBlock;
        if (sum + block_sums_[block] <= wanted && block + 1 < block_sums_.size()) {
            sum += block_sums_[block];
            last = start;
            continue;
        }
        for (std::size_t id = start; id < std::min(start + kSumBlock, vocab_size_); ++id) {
            if (weights_[id] == 0.0f) continue;
            sum += weights_[id];
            last = id;
            if (sum > wanted) return static_cast<std::int32_t>(id);
        }
    }
    return static_cast<std::int32_t>(last);
}

std::int32_t RowSampler::draw_by_rank(std::size_t top_k, const RowParams& params) {
    ranking_.reset(weights_.data(), vocab_size_);
    const bool limited = top_k < vocab_size_;
    const double infinite = std::numeric_limits<double>::infinity();
    Prefix kept = {vocab_size_, total(), -1};
    if (limited) kept = ranking_.until(top_k, infinite, false);
    if (params.top_p < 1.0) kept = ranking_.until(kept.count, params.top_p * kept.mass, true);
    return ranking_.until(kept.count, target(params.uniform, kept.mass), false).last_id;
}

void check_ids(const std::vector<std::int32_t>& ids, std::size_t vocab_size) {
    for (const std::int32_t id : ids) {
        if (id < 0 || static_cast<std::size_t>(id) >= vocab_size) {
            throw std::out_of_range("token id " + std::to_string(id) + " is outside the vocabulary");
        }
    }
}

// The edit of each row, null where it has none.
std::vector<const RowEdit*> edits_by_row(const std::vector<RowEdit>& edits, std::size_t rows, std::size_t vocab_size) {
    std::vector<const RowEdit*> by_row(rows, nullptr);
    for (const RowEdit& edit : edits) {
        if (edit.row < 0 || static_cast<std::size_t>(edit.row) >= rows) {
            throw std::out_of_range("there is no row " + std::to_string(edit.row) + " to edit");
        }
        check_ids(edit.prompt_ids, vocab_size);
        check_ids(edit.output_ids, vocab_size);
        check_ids(edit.bias_ids, vocab_size);
        check_ids(edit.forbidden_ids, vocab_size);
        if (!edit.allowed.empty() && edit.allowed.size() != (vocab_size + kIdsPerWord - 1) / kIdsPerWord) {
            throw std::invalid_argument("allowed has " + std::to_string(edit.allowed.size()) +
                                        " words for a vocabulary of " + std::to_string(vocab_size));
        }
        by_row[static_cast<std::size_t>(edit.row)] = &edit;
    }
    return by_row;
}

}  // namespace

void sample(const float* logits, std::size_t rows, std::size_t vocab_size, const RowParams* params,
            const std::vector<RowEdit>& edits, int threads, const std::string& isa, std::int32_t* tokens) {
    const RowKernels& kernels = row_kernels(isa);
    const std::vector<const RowEdit*> by_row = edits_by_row(edits, rows, vocab_size);
    const std::size_t drawn = std::count_if(params, params + rows, [](const RowParams& p) { return p.temperature > 0; });
    const std::size_t useful = std::min({static_cast<std::size_t>(std::max(threads, 1)), rows,
                                         1 + drawn * vocab_size / kIdsPerThread});
    for_each_row(rows, useful, [&] {
        return [&, sampler = RowSampler(kernels, vocab_size)](std::size_t row) mutable {
            tokens[row] = sampler.sample(logits + row * vocab_size, params[row], by_row[row]);
        };
    });
}

}  // namespace postroad
