#include "step_attention.h"

#include <cstring>

namespace postroad {

void StepAttention::run(Worker& worker, int64_t layer) const {
    const AttentionPlan& plan = plans.of(config.layers[layer]);
    const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
    worker.parallel_for(num_tasks * config.num_kv_heads, 1, [&](int64_t index, int64_t) {
        const int64_t task = plan.by_heads ? index % num_tasks : index / config.num_kv_heads;
        const int64_t kv_head = plan.by_heads ? index / num_tasks : index % config.num_kv_heads;
        run_task({plan, layer, kv_head, worker.index()}, plan.tasks[task]);
    });
}

void StepAttention::run_task(const Place& place, const AttentionTask& task) const {
    const KvKernels& kv = kernels.kv(cache.format());
    if (task.splits.empty()) return kv.attend(call_for(place, task.tokens, task.first_span, task.last_span));
    if (task.splits.size() > 1) {
        run_shared(place, task);
    } else {
        const AttentionSplit& split = place.plan.splits[task.splits[0]];
        AttentionCall call = call_for(place, split.tokens, task.first_span, task.last_span);
        call.partials = records(place, split, task.first_span);
        kv.attend(call);
    }
    for (const int64_t split : task.splits) fold_if_done(place, split);
}

// One call for the rows of all splits, which are brought together for it. All of them see all of the span's keys.
void StepAttention::run_shared(const Place& place, const AttentionTask& task) const {
    const int64_t group = config.group_size(), first_row = place.thread * task_tokens(group) * group;
    const ElementRows& queries = workspace.shared_queries;
    const FloatRows& sums = workspace.shared_records;
    const size_t record_bytes = sizeof(float) * sums.stride;
    AttentionCall call = call_for(place, place.plan.splits[task.splits[0]].tokens, task.first_span, task.last_span);
    call.queries = queries.row(first_row);
    call.query_stride = queries.stride_words;
    call.first_position = task.last_span * kSpan - 1;
    call.window = kNoWindow;
    call.partials = sums.row(first_row);
    call.rows = 0;
    for (const int64_t index : task.splits) {
        const AttentionCall own = call_for(place, place.plan.splits[index].tokens, task.first_span, task.last_span);
        for (int row = 0; row < own.rows; ++row) {
            std::memcpy(queries.row(first_row + call.rows + row), own.queries + row * own.query_stride,
                        sizeof(uint32_t) * own.query_stride);
        }
        call.rows += own.rows;
    }
    kernels.kv(cache.format()).attend(call);
    const float* made = call.partials;
    for (const int64_t index : task.splits) {
        const AttentionSplit& split = place.plan.splits[index];
        const int64_t rows = split.tokens.num_tokens * group;
        std::memcpy(records(place, split, task.first_span), made, rows * record_bytes);
        made += rows * sums.stride;
    }
}

void StepAttention::fold_if_done(const Place& place, int64_t index) const {
    const AttentionSplit& split = place.plan.splits[index];
    std::atomic<int64_t>& done = workspace.spans_done[index * config.num_kv_heads + place.kv_head];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < split.last_span - split.first_span) return;
    done.store(0, std::memory_order_relaxed);
    AttentionCall call = call_for(place, split.tokens, split.first_span, split.last_span);
    call.partials = records(place, split, split.first_span);
    kernels.fold_partials(call);
}

float* StepAttention::records(const Place& place, const AttentionSplit& split, int64_t span) const {
    const int64_t rows = split.tokens.num_tokens * config.group_size();
    return workspace.partials.row(split.first_record + place.kv_head * split.num_records +
                                  (span - split.first_span) * rows);
}

AttentionCall StepAttention::call_for(const Place& place, const AttentionTokens& tokens, int64_t first_span,
                                      int64_t last_span) const {
    const int64_t group = config.group_size();
    AttentionCall call{};
    call.queries = workspace.queries.row((place.kv_head * workspace.token_capacity + tokens.first_token) * group);
    call.query_stride = workspace.queries.stride_words;
    call.rows = static_cast<int>(tokens.num_tokens * group);
    call.group = static_cast<int>(group);
    call.first_position = tokens.first_position();
    call.window = place.plan.window;
    call.first_span = first_span;
    call.last_span = last_span;
    call.blocks = batch.blocks.data() + tokens.sequence->first_block;
    call.keys = cache.keys(place.layer, 0, place.kv_head);
    call.values = cache.values(place.layer, 0, place.kv_head);
    call.scales = cache.scales(place.layer, 0, place.kv_head);
    call.block_stride = cache.block_stride();
    call.head_dim = static_cast<int>(config.head_dim);
    call.value_stride = cache.value_stride();
    call.cap = config.attention_softcap * kLog2E;
    call.scratch = reinterpret_cast<uint32_t*>(workspace.thread_scratch.row(place.thread));
    const int64_t output_elements = elements_per_word(kernels.format);
    call.output_stride = workspace.attended.stride_words * output_elements;
    const size_t element_bytes = sizeof(uint32_t) / output_elements;
    call.output = reinterpret_cast<char*>(workspace.attended.row(tokens.first_token)) +
                  element_bytes * place.kv_head * group * config.head_dim;
    return call;
}

}  // namespace postroad
