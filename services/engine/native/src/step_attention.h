// A layer's attention: the tasks of its plan, for all KV heads, from the step's queries and the cache to attended rows.
#pragma once

#include "attention_plan.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "model_config.h"
#include "step_batch.h"
#include "thread_pool.h"
#include "workspace.h"

namespace postroad {

// All references must outlive it.
struct StepAttention {
    const ModelConfig& config;
    const Kernels& kernels;
    const KvCache& cache;
    const StepBatch& batch;
    const AttentionPlans& plans;
    Workspace& workspace;

    // Called by every thread of the team.
    void run(Worker& worker, int64_t layer) const;

private:
    // One of a layer's KV heads on one of the threads.
    struct Place {
        const AttentionPlan& plan;
        int64_t layer, kv_head;
        int thread;
    };

    void run_task(const Place& place, const AttentionTask& task) const;
    void run_shared(const Place& place, const AttentionTask& task) const;
    void fold_if_done(const Place& place, int64_t split) const;
    AttentionCall call_for(const Place& place, const AttentionTokens& tokens, int64_t first_span,
                           int64_t last_span) const;
    float* records(const Place& place, const AttentionSplit& split, int64_t span) const;
};

}  // namespace postroad
