// A step's arguments, checked and laid out for the step.
#pragma once

#include <cstdint>
#include <vector>

namespace postroad {

struct IndexSpan {
    const int32_t* data;
    int64_t size;

    int32_t operator[](int64_t i) const { return data[i]; }
    const int32_t* begin() const { return data; }
    const int32_t* end() const { return data + size; }
};

// As the caller gives them, see Model.step.
struct StepArguments {
    IndexSpan token_ids;
    IndexSpan positions;
    IndexSpan sequence_offsets;
    IndexSpan context_lengths;
    IndexSpan page_table;
    IndexSpan page_table_offsets;
    IndexSpan logit_rows;
    IndexSpan state_rows;
};

struct CacheShape {
    int64_t num_pages;
    int64_t blocks_per_page;
    int64_t vocab_size;
};

struct BatchToken {
    int64_t position;
    int64_t block;     // of the KV cache
    int slot;          // in the block
    bool clears_rest;  // nobody has written the block's later slots
};

struct BatchSequence {
    int64_t first_token;
    int64_t num_tokens;
    int64_t first_position;
    int64_t first_block;  // index into StepBatch::blocks

    int64_t context_length() const { return first_position + num_tokens; }
};

struct StepBatch {
    std::vector<BatchSequence> sequences;
    std::vector<BatchToken> tokens;
    std::vector<int32_t> blocks;  // the sequences' KV blocks, one sequence after another
    IndexSpan token_ids;
    std::vector<int32_t> wanted_rows;  // whose last states are computed: those for logits, then those for states
    int64_t num_logit_rows;

    int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }

    // How many of the tokens [first, last) lie in the first one's block, slot after slot.
    int64_t neighbours(int64_t first, int64_t last) const;

    // Throws std::invalid_argument for arguments that do not fit together, std::out_of_range for a token id, page or
    // row out of range, or a page table that is too short for its sequence.
    StepBatch(const StepArguments& arguments, const CacheShape& shape);

private:
    void add_sequence(const StepArguments& arguments, const CacheShape& shape, int64_t index);
};

}  // namespace postroad
