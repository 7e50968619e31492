#include "workspace.h"

#include <algorithm>

#include "attention_plan.h"
#include "kernels/kernels.h"

namespace postroad {
namespace {

// Not a multiple of a large power of two, so that neighbouring rows do not meet in one set of the cache.
int64_t spread(int64_t words) {
    const int64_t padded = round_up(words, kWordPadding);
    return padded % 256 == 0 ? padded + kWordPadding : padded;
}

void reserve_rows(FloatRows& rows, int64_t count, int64_t width) {
    rows.memory = HugePages();  // first the old one goes
    rows.stride = spread(width);
    rows.memory = HugePages(sizeof(float) * count * rows.stride);
}

void reserve_rows(ElementRows& rows, int64_t count, int64_t width, Format format) {
    rows.memory = HugePages();
    rows.stride_words = spread(ceil_div(width, elements_per_word(format)));
    rows.memory = HugePages(sizeof(uint32_t) * count * rows.stride_words);
}

int64_t grown(int64_t capacity, int64_t needed) { return std::max(needed, capacity + capacity / 2); }

}  // namespace

Workspace::Workspace(const ModelConfig& config, Format format, KvFormat kv_format, int64_t quantized_words,
                     int num_threads)
    : config_(config), format_(format), quantized_words_(quantized_words) {
    const int64_t group = config.group_size();
    const int64_t rows = task_tokens(group) * group;
    const int64_t attention =
        attention_scratch_words(static_cast<int>(rows), round_up(config.head_dim, kBlock), kv_format);
    reserve_rows(thread_scratch, num_threads, std::max(attention, kBlock * heads_scratch_stride(config.head_dim)));
    reserve_rows(shared_queries, num_threads * rows, config.head_dim, format);
    reserve_records(shared_records, num_threads * rows);
}

void Workspace::reserve(int64_t tokens, int64_t wanted_rows, int64_t records, int64_t splits) {
    const int64_t rows = std::max(tokens, wanted_rows);  // a row may be wanted more than once
    if (rows > token_capacity) reserve_tokens(grown(token_capacity, rows));
    if (wanted_rows > wanted_capacity_) {
        wanted_capacity_ = grown(wanted_capacity_, wanted_rows);
        reserve_rows(last_residual, wanted_capacity_, config_.hidden_size);
        reserve_rows(last_attended, wanted_capacity_, config_.q_size(), format_);
    }
    if (records > record_capacity_) {
        record_capacity_ = grown(record_capacity_, records);
        reserve_records(partials, record_capacity_);
    }
    const int64_t counters = splits * config_.num_kv_heads;
    if (counters > split_capacity_) {
        split_capacity_ = grown(split_capacity_, counters);
        spans_done = std::make_unique<std::atomic<int64_t>[]>(split_capacity_);
        for (int64_t i = 0; i < split_capacity_; ++i) spans_done[i].store(0, std::memory_order_relaxed);
    }
}

void Workspace::reserve_records(FloatRows& rows, int64_t count) const {
    rows.memory = HugePages();
    rows.stride = round_up(config_.head_dim, kBlock) + kRecordTail;  // as kernels address them
    rows.memory = HugePages(sizeof(float) * count * rows.stride);
}

void Workspace::reserve_tokens(int64_t tokens) {
    token_capacity = 0;  // should an allocation fail, the next step starts anew
    reserve_rows(residual, tokens, config_.hidden_size);
    reserve_rows(normed, tokens, config_.hidden_size, format_);
    reserve_rows(projected, tokens, config_.q_size() + 2 * config_.kv_size());
    reserve_rows(queries, tokens * config_.num_heads, config_.head_dim, format_);
    reserve_rows(attended, tokens, config_.q_size(), format_);
    reserve_rows(gated, tokens, config_.intermediate_size, format_);
    if (quantized_words_ > 0) reserve_rows(quantized, tokens, quantized_words_, Format::kF32);
    if (config_.post_norms) reserve_rows(branch, tokens, config_.hidden_size);
    int64_t angles = 0;
    for (const RopeConfig& rope : config_.ropes) angles += rope.half();
    reserve_rows(cosines, tokens, angles);
    reserve_rows(sines, tokens, angles);
    token_capacity = tokens;
}

}  // namespace postroad
