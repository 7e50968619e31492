#include "attention_plan.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace postroad {

AttentionPlan::AttentionPlan(const StepBatch& batch, const ModelConfig& config, int64_t window) : window(window) {
    const int64_t largest = task_tokens(config.group_size());
    OpenTasks open;
    for (const BatchSequence& sequence : batch.sequences) {
        const int64_t end = sequence.first_token + sequence.num_tokens;
        const AttentionTokens all{&sequence, sequence.first_token, sequence.num_tokens};
        const int64_t num_spans = ceil_div(sequence.context_length(), kSpan) - first_span(sequence.first_position);
        if (sequence.num_tokens <= largest && num_spans > 1) {  // decodes: long contexts are shared among threads
            add_split(batch, all, config, open);
            continue;
        }
        by_heads |= sequence.num_tokens > largest;
        // The last tokens see the most keys: they go first, so that threads end together.
        for (int64_t last_token = end; last_token > sequence.first_token; last_token -= largest) {
            const int64_t first_token = std::max(sequence.first_token, last_token - largest);
            add_whole({&sequence, first_token, last_token - first_token});
        }
    }
}

int64_t AttentionPlan::first_span(int64_t position) const {
    return std::max<int64_t>(0, position + 1 - window) / kSpan;
}

void AttentionPlan::add_whole(const AttentionTokens& tokens) {
    tasks.push_back({tokens, {}, first_span(tokens.first_position()), ceil_div(tokens.last_position() + 1, kSpan)});
}

void AttentionPlan::add_split(const StepBatch& batch, const AttentionTokens& tokens, const ModelConfig& config,
                              OpenTasks& open) {
    const int64_t first = first_span(tokens.first_position());
    const int64_t last = ceil_div(tokens.last_position() + 1, kSpan);
    const int64_t records = (last - first) * tokens.num_tokens * config.group_size();
    const auto split = static_cast<int64_t>(splits.size());
    splits.push_back({tokens, first, last, num_records, records});
    num_records += records * config.num_kv_heads;
    for (int64_t span = first; span < last; ++span) {
        if (join(batch, split, span, task_tokens(config.group_size()), open)) continue;
        tasks.push_back({{}, {split}, span, span + 1});
    }
}

bool AttentionPlan::sees_all(const AttentionTokens& tokens, int64_t span) const {
    return tokens.first_position() >= (span + 1) * kSpan - 1 && tokens.last_position() + 1 - window <= span * kSpan;
}

// Adds a split's span to a task that computes the same one. Where there is none, the next task to be added may be it.
bool AttentionPlan::join(const StepBatch& batch, int64_t split, int64_t span, int64_t most_tokens, OpenTasks& open) {
    if (!sees_all(splits[split].tokens, span)) return false;
    constexpr int64_t kBlocks = kSpan / kBlock;
    const auto blocks = [&](int64_t of) {
        return batch.blocks.data() + splits[of].tokens.sequence->first_block + span * kBlocks;
    };
    const auto [found, is_new] = open.try_emplace(*blocks(split), tasks.size());
    if (is_new) return false;
    AttentionTask& task = tasks[found->second];
    int64_t num_tokens = splits[split].tokens.num_tokens;
    for (const int64_t other : task.splits) num_tokens += splits[other].tokens.num_tokens;
    const bool same =
        task.first_span == span && std::equal(blocks(split), blocks(split) + kBlocks, blocks(task.splits[0]));
    if (!same || num_tokens > most_tokens) {
        found->second = tasks.size();
        return false;
    }
    task.splits.push_back(split);
    return true;
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
