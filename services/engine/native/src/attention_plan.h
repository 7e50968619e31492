// How a step's attention is cut into tasks. The same for every layer with the same window, and for every KV head.
#pragma once

#include <cstdint>
#include <vector>

#include "model_config.h"
#include "step_batch.h"

namespace postroad {

// Some tokens of a sequence against some spans of its keys.
struct AttentionTask {
    const BatchSequence* sequence;
    int64_t first_token;  // in the step
    int64_t num_tokens;
    int64_t first_span, last_span;
    int64_t split;  // index into AttentionPlan::splits, or -1: the task computes all spans of its tokens
};

// Tokens whose spans are computed by several tasks; whoever finishes last folds them.
struct AttentionSplit {
    int64_t first_span, last_span;
    int64_t first_record;  // of KV head 0, counted in records
    int64_t num_records;   // per KV head
};

struct AttentionPlan {
    std::vector<AttentionTask> tasks;
    std::vector<AttentionSplit> splits;
    int64_t num_records = 0;  // partial records of all splits and KV heads
    int64_t window;           // keys that a token sees

    // The batch must outlive the plan.
    AttentionPlan(const StepBatch& batch, const ModelConfig& config, int64_t window);
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
constexpr int64_t kTaskRows = 48;

// Tokens of a task at most, for `group` query heads per KV head.
constexpr int64_t task_tokens(int64_t group) { return group < kTaskRows ? kTaskRows / group : 1; }

}  // namespace postroad
