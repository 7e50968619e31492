// Memory that a step computes in. Grows with the largest step so far; rows beyond a step's own hold leftovers.
#pragma once

#include <atomic>
#include <memory>

#include "elements.h"
#include "huge_pages.h"
#include "model_config.h"

namespace postroad {

// Rows of elements, zero from the last element to the stride.
struct ElementRows {
    HugePages memory;
    int64_t stride_words = 0;

    uint32_t* row(int64_t index) const { return memory.as<uint32_t>() + index * stride_words; }
};

struct FloatRows {
    HugePages memory;
    int64_t stride = 0;

    float* row(int64_t index) const { return memory.as<float>() + index * stride; }
};

struct Workspace {
    FloatRows residual;       // [tokens][hidden_size]
    FloatRows last_residual;  // [wanted rows][hidden_size]
    ElementRows normed;       // [tokens][hidden_size]
    FloatRows projected;      // [tokens][q_size + 2 * kv_size]
    ElementRows queries;      // [num_kv_heads][tokens][group][head_dim]
    ElementRows attended;     // [tokens][q_size]
    ElementRows last_attended;
    ElementRows gated;           // [tokens][intermediate_size]
    ElementRows quantized;       // [tokens], the input of a linear layer of integers (QuantizeCall)
    FloatRows branch;            // [tokens][hidden_size], what a post-norm is for; empty without them
    FloatRows cosines;           // [tokens][half a turned head of each rope, one after another]
    FloatRows sines;             // likewise
    FloatRows partials;          // attention records
    ElementRows shared_queries;  // [threads][rows of an attention task][head_dim]
    FloatRows shared_records;    // [threads][rows of an attention task], as partials
    FloatRows thread_scratch;
    std::unique_ptr<std::atomic<int64_t>[]> spans_done;  // per split and KV head
    int64_t token_capacity = 0;

    // quantized_words: of the longest row of integers, 0 for none.
    Workspace(const ModelConfig& config, Format format, KvFormat kv_format, int64_t quantized_words, int num_threads);

    // Makes room for a step. Throws std::bad_alloc.
    void reserve(int64_t tokens, int64_t wanted_rows, int64_t records, int64_t splits);

private:
    void reserve_records(FloatRows& rows, int64_t count) const;
    void reserve_tokens(int64_t tokens);

    const ModelConfig& config_;
    Format format_;
    int64_t quantized_words_;
    int64_t record_capacity_ = 0;
    int64_t wanted_capacity_ = 0;
    int64_t split_capacity_ = 0;
};

}  // namespace postroad
