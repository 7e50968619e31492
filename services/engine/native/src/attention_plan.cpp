#include "attention_plan.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace postroad {

AttentionPlan::AttentionPlan(const StepBatch& batch, const ModelConfig& config, int64_t window) : window(window) {
    const int64_t group = config.group_size();
    const int64_t largest = task_tokens(group);
    const auto first_span = [&](int64_t position) { return std::max<int64_t>(0, position + 1 - window) / kSpan; };
    for (const BatchSequence& sequence : batch.sequences) {
        const int64_t end = sequence.first_token + sequence.num_tokens;
        const int64_t first = first_span(sequence.first_position);
        const int64_t last = ceil_div(sequence.context_length(), kSpan);
        if (sequence.num_tokens <= largest && last - first > 1) {  // decodes: long contexts are shared among threads
            const int64_t records = (last - first) * sequence.num_tokens * group;
            const auto split = static_cast<int64_t>(splits.size());
            splits.push_back({first, last, num_records, records});
            num_records += records * config.num_kv_heads;
            for (int64_t span = first; span < last; ++span) {
                tasks.push_back({&sequence, sequence.first_token, sequence.num_tokens, span, span + 1, split});
            }
            continue;
        }
        // The last tokens see the most keys: they go first, so that threads end together.
        for (int64_t last_token = end; last_token > sequence.first_token; last_token -= largest) {
            const int64_t first_token = std::max(sequence.first_token, last_token - largest);
            const int64_t position = sequence.first_position + first_token - sequence.first_token;
            const int64_t num_tokens = last_token - first_token;
            tasks.push_back({&sequence, first_token, num_tokens, first_span(position),
                             ceil_div(position + num_tokens, kSpan), -1});
        }
    }
}

AttentionPlans::AttentionPlans(const StepBatch& batch, const ModelConfig& config) {
    std::vector<int64_t> windows;
    for (const LayerConfig& layer : config.layers) {
        if (std::find(windows.begin(), windows.end(), layer.window) == windows.end()) windows.push_back(layer.window);
    }
    for (const int64_t window : windows) {
        const AttentionPlan& plan = plans.emplace_back(batch, config, window);
        num_records = std::max(num_records, plan.num_records);
        num_splits = std::max(num_splits, static_cast<int64_t>(plan.splits.size()));
    }
}

const AttentionPlan& AttentionPlans::of(const LayerConfig& layer) const {
    return *std::find_if(plans.begin(), plans.end(), [&](const auto& plan) { return plan.window == layer.window; });
}

}  // namespace postroad
