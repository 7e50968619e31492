// One step through the model: what each thread of the team does, phase by phase.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "model_config.h"
#include "step_batch.h"
#include "thread_pool.h"
#include "weights.h"
#include "workspace.h"

namespace postroad {

// The last linear layer, over normed rows of the workspace. All references must outlive it.
struct Head {
    const ModelConfig& config;
    const Kernels& kernels;
    const Weights& weights;
    const Workspace& workspace;
    int num_threads;

    // Writes logits [count][vocab_size], capped where the model says so. Called by every thread of the team.
    void run(Worker& worker, int64_t first_row, int64_t count, float* logits) const;
};

// All references must outlive the step. `logits`: [logit rows][vocab_size]. The step leaves the last layer's normed states
// of its wanted rows in the workspace, logit rows first.
struct Forward {
    const ModelConfig& config;
    const Kernels& kernels;
    const Weights& weights;
    const KvCache& cache;
    const StepBatch& batch;
    const AttentionPlans& plans;
    Workspace& workspace;
    int num_threads;
    float* logits;

    // Called by every thread of the team.
    void run(Worker& worker) const;

private:
    // The rows that a part of the step works on: all tokens, or, in the end, those whose logits or states are wanted.
    struct Rows {
        int64_t count;
        const FloatRows& residual;
        const ElementRows& attended;
    };

    void embed(Worker& worker) const;
    void project(Worker& worker, const LayerWeights& layer, int64_t index) const;
    void place_heads(Worker& worker, const LayerWeights& layer, int64_t index) const;
    void attend(Worker& worker, int64_t index) const;
    void attend_task(const AttentionPlan& plan, const AttentionTask& task, int64_t index, int64_t kv_head,
                     uint32_t* scratch) const;
    Rows select_rows(Worker& worker) const;
    void finish_layer(Worker& worker, const LayerWeights& layer, const Rows& rows) const;
    void norm(Worker& worker, const FloatRows& input, int64_t count, const float* weight) const;
    void add_linear(Worker& worker, const Linear& linear, const ElementRows& input, const float* post_norm,
                    const Rows& rows) const;
    void linear(Worker& worker, const LinearCall& call, int64_t rows) const;
    int64_t row_grain(int64_t rows) const { return std::max<int64_t>(1, rows / (4 * num_threads)); }
};

}  // namespace postroad
