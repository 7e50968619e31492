// One step through the model: what each thread of the team does, phase by phase.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "model_config.h"
#include "step_attention.h"
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

    // Writes logits [count][vocab_size], capped where the model says so. Called by every thread of the team.
    void run(Worker& worker, int64_t first_row, int64_t count, float* logits) const;
};

// All references must outlive the step. `logits`: [logit rows][vocab_size]. The step leaves the last layer's normed
// states of its wanted rows in the workspace, logit rows first.
struct Forward {
    const ModelConfig& config;
    const Kernels& kernels;
    const Weights& weights;
    const KvCache& cache;
    const StepBatch& batch;
    const AttentionPlans& plans;
    Workspace& workspace;
    float* logits;

    // Called by every thread of the team.
    void run(Worker& worker) const;

private:
    // The rows that a part of the step works on: tokens, or, in the end, those whose logits or states are wanted.
    struct Rows {
        int64_t first, count;
        const FloatRows& residual;
        const ElementRows& attended;
    };

    bool by_rows(const Worker& worker) const;
    Rows rows_of(const Worker& worker) const;
    Rows all_rows() const;
    void embed(Worker& worker, const Rows& rows) const;
    void project(Worker& worker, const LayerWeights& layer, int64_t index, const Rows& rows) const;
    void place_heads(Worker& worker, const LayerWeights& layer, int64_t index, const Rows& rows) const;
    Rows select_rows(Worker& worker) const;
    void finish_layer(Worker& worker, const LayerWeights& layer, const Rows& rows) const;
    void norm(Worker& worker, const Rows& rows, const float* weight) const;
    void add_linear(Worker& worker, const Linear& linear, const ElementRows& input, const float* post_norm,
                    const Rows& rows) const;
    void linear(Worker& worker, const Linear& linear, const ElementRows& input, void* output, int64_t output_stride,
                Epilogue epilogue, const Rows& rows) const;
    template <class Task>
    void for_each_row(Worker& worker, const Rows& rows, const Task& task) const;
    template <class Task>
    void for_each_span(Worker& worker, const Rows& rows, const Task& task) const;
};

}  // namespace postroad
