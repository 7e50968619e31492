// A model in memory: weights, KV cache and threads, and the one call per engine step.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/kernels.h"
#include "kv_cache.h"
#include "model_config.h"
#include "prefault.h"
#include "step_batch.h"
#include "thread_pool.h"
#include "weights.h"
#include "workspace.h"

namespace postroad {

struct ModelOptions {
    int64_t num_pages;
    int64_t page_size;  // tokens, a multiple of 16
    int threads;
    Format weight_format;  // of weights that are not integers, and of activations
    KvFormat kv_format;
    WeightFormats quantization;
    std::string isa;
};

class Model {
public:
    // Throws std::invalid_argument for options or a config that make no sense, std::bad_alloc.
    Model(ModelConfig config, const ModelOptions& options);

    const ModelConfig& config() const { return config_; }
    const char* isa() const { return kernels_.isa; }
    size_t weight_bytes() const { return weights_.bytes(); }
    std::map<WeightFormat, int64_t> num_linears() const { return weights_.num_linears(); }

    void set_weight(const std::string& name, const SourceTensor& tensor);  // see Weights::set
    void finish();                                                         // see Weights::require_complete

    // Logits [logit rows][vocab_size] of one step. The same memory serves the next step, unless that needs more rows.
    // Throws as StepBatch does, and std::runtime_error before `finish`.
    std::shared_ptr<const float> step(const StepArguments& arguments);

    // Of the last step's state rows: how many there are, their states (what the head takes) [state rows][hidden_size] in
    // float32, and logits [count][vocab_size] of `count` of them. Throws std::out_of_range for rows that there are not.
    int64_t num_states() const { return num_states_; }
    void states(float* output);
    void state_logits(int64_t first, int64_t count, float* output);

private:
    ModelConfig config_;
    const Kernels& kernels_;
    Weights weights_;
    KvCache cache_;
    Prefault prefault_;
    CacheShape shape_;
    ThreadPool pool_;
    Workspace workspace_;
    std::shared_ptr<HugePages> logits_;
    std::mutex mutex_;  // calls from several threads come one after another
    bool finished_ = false;
    int64_t first_state_ = 0;  // among the normed rows of the workspace
    int64_t num_states_ = 0;
};

}  // namespace postroad
