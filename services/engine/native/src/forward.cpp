#include "forward.h"

#include <cmath>
#include <cstring>

#include "parallel_linear.h"

namespace postroad {

LinearCall head_call(const ModelConfig& config, const Weights& weights, const Workspace& workspace, int64_t first_row,
                     float* logits) {
    const ElementRows& normed = workspace.normed;
    return {weights.lm_head(), normed.row(first_row), normed.stride_words, logits, config.vocab_size,
            Epilogue::kStore};
}

void Forward::run(Worker& worker) const {
    embed(worker);
    const auto& layers = weights.layers();
    const auto last = static_cast<int64_t>(layers.size()) - 1;
    for (int64_t index = 0; index <= last; ++index) {
        project(worker, layers[index], index);
        if (index == last && batch.wanted_rows.empty()) return;
        attend(worker, index);
        if (index < last)
            finish_layer(worker, layers[index], {batch.num_tokens(), workspace.residual, workspace.attended});
    }
    const Rows rows = select_rows(worker);
    finish_layer(worker, layers[last], rows);
    norm(worker, rows.residual, rows.count, weights.final_norm());
    linear(worker, head_call(config, weights, workspace, 0, logits), batch.num_logit_rows);
}

void Forward::embed(Worker& worker) const {
    worker.parallel_for(batch.num_tokens(), row_grain(batch.num_tokens()), [&](int64_t first, int64_t last) {
        for (int64_t token = first; token < last; ++token) {
            weights.embed(batch.token_ids[token], workspace.residual.row(token));
            const auto position = static_cast<float>(batch.tokens[token].position);
            for (int64_t i = 0; i < config.head_dim / 2; ++i) {
                const float angle = position * config.rope_inv_freq[i];
                workspace.cosines.row(token)[i] = std::cos(angle) * config.rope_attention_scale;
                workspace.sines.row(token)[i] = std::sin(angle) * config.rope_attention_scale;
            }
        }
    });
}

// Queries, and keys and values into the cache: those of all sequences before any attends, since one may read a page
// that another fills in this very step.
void Forward::project(Worker& worker, const LayerWeights& layer, int64_t index) const {
    norm(worker, workspace.residual, batch.num_tokens(), layer.attention_norm);
    linear(worker,
           {layer.qkv, workspace.normed.row(0), workspace.normed.stride_words, workspace.projected.row(0),
            workspace.projected.stride, Epilogue::kStore},
           batch.num_tokens());
    place_heads(worker, layer, index);
}

void Forward::place_heads(Worker& worker, const LayerWeights& layer, int64_t index) const {
    const int64_t group = config.num_heads / config.num_kv_heads;
    const int64_t query_stride = workspace.queries.stride_words * elements_per_word(kernels.format);
    HeadsCall call{};
    call.num_heads = static_cast<int>(config.num_heads);
    call.num_kv_heads = static_cast<int>(config.num_kv_heads);
    call.head_dim = static_cast<int>(config.head_dim);
    call.q_norm = layer.q_norm;
    call.k_norm = layer.k_norm;
    call.norm_eps = config.rms_norm_eps;
    call.scratch = workspace.thread_scratch.row(worker.index());
    call.query_stride = query_stride;
    call.group_stride = workspace.token_capacity * group * query_stride;
    call.head_words = cache.head_words();
    call.value_stride = cache.value_stride();
    worker.parallel_for(batch.num_tokens(), row_grain(batch.num_tokens()), [&](int64_t first, int64_t last) {
        for (int64_t token = first; token < last; ++token) {
            const BatchToken& place = batch.tokens[token];
            call.projected = workspace.projected.row(token);
            call.cosines = workspace.cosines.row(token);
            call.sines = workspace.sines.row(token);
            call.queries = workspace.queries.row(token * group);
            call.keys = cache.keys(index, place.block, 0);
            call.values = cache.values(index, place.block, 0);
            call.slot = place.slot;
            call.clears_rest = place.clears_rest;
            kernels.heads(call);
        }
    });
}

void Forward::attend(Worker& worker, int64_t index) const {
    auto* scratch = reinterpret_cast<uint32_t*>(workspace.thread_scratch.row(worker.index()));
    const auto count = static_cast<int64_t>(plan.tasks.size()) * config.num_kv_heads;
    worker.parallel_for(count, 1, [&](int64_t first, int64_t) {
        attend_task(plan.tasks[first / config.num_kv_heads], index, first % config.num_kv_heads, scratch);
    });
}

void Forward::attend_task(const AttentionTask& task, int64_t index, int64_t kv_head, uint32_t* scratch) const {
    const int64_t group = config.num_heads / config.num_kv_heads;
    const BatchSequence& sequence = *task.sequence;
    AttentionCall call{};
    call.queries = workspace.queries.row((kv_head * workspace.token_capacity + task.first_token) * group);
    call.query_stride = workspace.queries.stride_words;
    call.rows = static_cast<int>(task.num_tokens * group);
    call.group = static_cast<int>(group);
    call.first_position = sequence.first_position + task.first_token - sequence.first_token;
    call.first_span = task.first_span;
    call.last_span = task.last_span;
    call.blocks = batch.blocks.data() + sequence.first_block;
    call.keys = cache.keys(index, 0, kv_head);
    call.values = cache.values(index, 0, kv_head);
    call.block_stride = cache.block_stride();
    call.head_dim = static_cast<int>(config.head_dim);
    call.value_stride = cache.value_stride();
    call.scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(config.head_dim)));
    call.scratch = scratch;
    const int64_t output_elements = elements_per_word(kernels.format);
    call.output_stride = workspace.attended.stride_words * output_elements;
    const size_t element_bytes = sizeof(uint32_t) / output_elements;
    call.output = reinterpret_cast<char*>(workspace.attended.row(task.first_token)) +
                  element_bytes * kv_head * group * config.head_dim;
    if (task.split < 0) return kernels.attend(call);

    const AttentionSplit& split = plan.splits[task.split];
    const int64_t first_record = split.first_record + kv_head * split.num_records;
    call.partials = workspace.partials.row(first_record + task.first_span * call.rows);
    kernels.attend(call);
    std::atomic<int64_t>& done = workspace.spans_done[task.split * config.num_kv_heads + kv_head];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < split.num_spans) return;
    done.store(0, std::memory_order_relaxed);
    call.partials = workspace.partials.row(first_record);
    call.first_span = 0;
    call.last_span = split.num_spans;
    kernels.fold_partials(call);
}

// Once all keys and values are written, only rows whose logits or states are wanted are worth computing.
Forward::Rows Forward::select_rows(Worker& worker) const {
    const std::vector<int32_t>& wanted = batch.wanted_rows;
    const auto count = static_cast<int64_t>(wanted.size());
    worker.parallel_for(count, row_grain(count), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            std::memcpy(workspace.last_residual.row(i), workspace.residual.row(wanted[i]),
                        sizeof(float) * config.hidden_size);
            std::memcpy(workspace.last_attended.row(i), workspace.attended.row(wanted[i]),
                        sizeof(uint32_t) * workspace.attended.stride_words);
        }
    });
    return {count, workspace.last_residual, workspace.last_attended};
}

// Everything of a layer that follows attention. Adds to the residual.
void Forward::finish_layer(Worker& worker, const LayerWeights& layer, const Rows& rows) const {
    const FloatRows& residual = rows.residual;
    const ElementRows& normed = workspace.normed;
    const ElementRows& gated = workspace.gated;
    linear(worker,
           {layer.output, rows.attended.row(0), rows.attended.stride_words, residual.row(0), residual.stride,
            Epilogue::kAccumulate},
           rows.count);
    norm(worker, residual, rows.count, layer.mlp_norm);
    const Epilogue activation = config.activation == Activation::kSilu ? Epilogue::kSiluMul : Epilogue::kGeluMul;
    linear(worker,
           {layer.gate_up, normed.row(0), normed.stride_words, gated.row(0),
            gated.stride_words * elements_per_word(kernels.format), activation},
           rows.count);
    linear(worker,
           {layer.down, gated.row(0), gated.stride_words, residual.row(0), residual.stride, Epilogue::kAccumulate},
           rows.count);
}

void Forward::norm(Worker& worker, const FloatRows& input, int64_t count, const float* weight) const {
    worker.parallel_for(count, row_grain(count), [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            kernels.rms_norm(
                {input.row(row), weight, config.rms_norm_eps, config.hidden_size, workspace.normed.row(row)});
        }
    });
}

void Forward::linear(Worker& worker, const LinearCall& call, int64_t rows) const {
    parallel_linear(worker, kernels, num_threads, call, rows);
}

}  // namespace postroad
