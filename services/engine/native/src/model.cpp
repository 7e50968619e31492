#include "model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "attention_plan.h"
#include "forward.h"
#include "isa.h"

namespace postroad {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxBlocks = int64_t{1} << 31;  // block numbers are int32

ModelConfig checked(ModelConfig config, const ModelOptions& options) {
    config.validate();
    if (options.page_size < kBlock || options.page_size % kBlock != 0) {
        throw std::invalid_argument("page_size must be a multiple of 16, not " + std::to_string(options.page_size));
    }
    if (options.num_pages < 1 || options.num_pages >= kMaxBlocks / (options.page_size / kBlock)) {
        throw std::invalid_argument("num_pages is out of range: " + std::to_string(options.num_pages));
    }
    if (options.threads < 1 || options.threads > kMaxThreads) {
        throw std::invalid_argument("threads must lie between 1 and 1024, not " + std::to_string(options.threads));
    }
    return config;
}

}  // namespace

Model::Model(ModelConfig config, const ModelOptions& options)
    : config_(checked(std::move(config), options)),
      kernels_(select_kernels(options.isa, options.weight_format)),
      weights_(config_, options.weight_format, options.quantization),
      cache_(config_, options.weight_format, options.kv_format, options.num_pages, options.page_size),
      prefault_(cache_),
      shape_{options.num_pages, options.page_size / kBlock, config_.vocab_size},
      pool_(options.threads),
      workspace_(config_, options.weight_format, options.kv_format, weights_.quantized_row_words(), options.threads),
      logits_(std::make_shared<HugePages>()) {}

void Model::set_weight(const std::string& name, const SourceTensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    weights_.set(name, tensor);
}

void Model::finish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    weights_.require_complete();
    finished_ = true;
    prefault_.used(0);
}

std::shared_ptr<const float> Model::step(const StepArguments& arguments) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) throw std::runtime_error("step before finish: the weights are not complete");
    const StepBatch batch(arguments, shape_);
    const AttentionPlans plans(batch, config_);
    const auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
    num_states_ = 0;
    workspace_.reserve(batch.num_tokens(), num_wanted, plans.num_records, plans.num_splits);
    const size_t logit_bytes = sizeof(float) * batch.num_logit_rows * config_.vocab_size;
    // A caller that still holds the last step's logits keeps their memory: only the model's own share goes.
    if (logit_bytes > logits_->size()) logits_ = std::make_shared<HugePages>(logit_bytes);
    if (batch.num_tokens() > 0) {
        const Forward forward{
            config_, kernels_, weights_, cache_, batch, plans, workspace_, logits_->as<float>()};
        pool_.run([&forward](Worker& worker) { forward.run(worker); });
        prefault_.used(1 + *std::max_element(batch.blocks.begin(), batch.blocks.end()));
    }
    first_state_ = batch.num_logit_rows;
    num_states_ = num_wanted - batch.num_logit_rows;
    return {logits_, logits_->as<const float>()};
}

void Model::states(float* output) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t row = 0; row < num_states_; ++row, output += config_.hidden_size) {
        const uint32_t* words = workspace_.normed.row(first_state_ + row);
        if (kernels_.format == Format::kF32) {
            std::memcpy(output, words, sizeof(float) * config_.hidden_size);
            continue;
        }
        const auto* elements = reinterpret_cast<const uint16_t*>(words);
        for (int64_t i = 0; i < config_.hidden_size; ++i) output[i] = float_from_bf16(elements[i]);
    }
}

void Model::state_logits(int64_t first, int64_t count, float* output) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first < 0 || count < 0 || first > num_states_ - count) {
        throw std::out_of_range("the last step has no such state rows");
    }
    const Head head{config_, kernels_, weights_, workspace_};
    pool_.run([&](Worker& worker) { head.run(worker, first_state_ + first, count, output); });
}

}  // namespace postroad
