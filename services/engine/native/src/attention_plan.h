// How a step's attention is cut into tasks. The same for every layer with the same window, and for every KV head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "model_config.h"
#include "step_batch.h"

namespace postroad {

// Neighbouring tokens of a sequence.
struct AttentionTokens {
    const BatchSequence* sequence;
    int64_t first_token;  // in the step
    int64_t num_tokens;

    int64_t first_position() const { return sequence->first_position + first_token - sequence->first_token; }
    int64_t last_position() const { return first_position() + num_tokens - 1; }
};

// Tokens whose spans are computed by several tasks, each of which leaves records; whoever finishes last folds them.
struct AttentionSplit {
    AttentionTokens tokens;
    int64_t first_span, last_span;
    int64_t first_record;  // of KV head 0, counted in records; per KV head, span after span, one for each row
    int64_t num_records;   // per KV head
};

// Tokens against some spans of their keys: either all spans of one sequence's, or one span of splits. Several splits of
// one task see the same keys there, those of a prefix that their sequences share, which are read only once.
struct AttentionTask {
    AttentionTokens tokens;       // without splits
    std::vector<int64_t> splits;  // indices into AttentionPlan::splits
    int64_t first_span, last_span;
};

struct AttentionPlan {
    std::vector<AttentionTask> tasks;
    std::vector<AttentionSplit> splits;
    int64_t num_records = 0;  // partial records of all splits and KV heads
    int64_t window;           // keys that a token sees
    // Tasks are done one KV head after another: several of them read the same keys, which the second-level cache holds
    // of one head. Otherwise all heads of a task follow one another, as they lie in memory.
    bool by_heads = false;

    // The batch must outlive the plan.
    AttentionPlan(const StepBatch& batch, const ModelConfig& config, int64_t window);

private:
    // The task of each shared span that has room for more splits, by the span's first block.
    using OpenTasks = std::unordered_map<int32_t, std::size_t>;

    void add_whole(const AttentionTokens& tokens);
    void add_split(const StepBatch& batch, const AttentionTokens& tokens, const ModelConfig& config, OpenTasks& open);
    bool join(const StepBatch& batch, int64_t split, int64_t span, int64_t most_tokens, OpenTasks& open);
    int64_t first_span(int64_t position) const;
    bool sees_all(const AttentionTokens& tokens, int64_t span) const;
};

// One for each window that a model's layers have.
struct AttentionPlans {
    std::vector<AttentionPlan> plans;
    int64_t num_records = 0;  // of the plan with the most
    int64_t num_splits = 0;

    AttentionPlans(const StepBatch& batch, const ModelConfig& config);

    const AttentionPlan& of(const LayerConfig& layer) const;
};

// Query rows of a task at most (more only where a KV head's group alone has more).
constexpr int64_t kTaskRows = 64;

// Tokens of a task at most, for `group` query heads per KV head.
constexpr int64_t task_tokens(int64_t group) { return group < kTaskRows ? kTaskRows / group : 1; }

}  // namespace postroad
