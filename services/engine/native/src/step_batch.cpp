#include "step_batch.h"

#include <stdexcept>
#include <string>

#include "kernels/kernels.h"

namespace postroad {
namespace {

void require(bool holds, const std::string& message) {
    if (!holds) throw std::invalid_argument(message);
}

void require_in_range(const char* name, IndexSpan values, int64_t end) {
    for (const int32_t value : values) {
        if (value < 0 || value >= end) {
            throw std::out_of_range(std::string(name) + " holds " + std::to_string(value) + ", not in [0, " +
                                    std::to_string(end) + ")");
        }
    }
}

void require_offsets(const char* name, IndexSpan offsets, int64_t sequences, int64_t end, int64_t shortest) {
    const std::string prefix = name;
    require(offsets.size == sequences + 1, prefix + " must have one entry more than context_lengths");
    require(offsets[0] == 0 && offsets[sequences] == end,
            prefix + " must run from 0 to " + std::to_string(end) + ", the number of entries they cut");
    for (int64_t i = 0; i < sequences; ++i) {
        require(int64_t{offsets[i]} + shortest <= offsets[i + 1], prefix + " must grow from sequence to sequence");
    }
}

}  // namespace

StepBatch::StepBatch(const StepArguments& arguments, const CacheShape& shape)
    : token_ids(arguments.token_ids), num_logit_rows(arguments.logit_rows.size) {
    const int64_t num_sequences = arguments.context_lengths.size;
    require(arguments.positions.size == token_ids.size, "positions must have as many entries as token_ids");
    require_offsets("sequence_offsets", arguments.sequence_offsets, num_sequences, token_ids.size, 1);
    require_offsets("page_table_offsets", arguments.page_table_offsets, num_sequences, arguments.page_table.size, 0);
    require_in_range("token_ids", token_ids, shape.vocab_size);
    require_in_range("page_table", arguments.page_table, shape.num_pages);
    require_in_range("logit_rows", arguments.logit_rows, token_ids.size);
    require_in_range("state_rows", arguments.state_rows, token_ids.size);
    wanted_rows.assign(arguments.logit_rows.begin(), arguments.logit_rows.end());
    wanted_rows.insert(wanted_rows.end(), arguments.state_rows.begin(), arguments.state_rows.end());
    tokens.reserve(token_ids.size);
    sequences.reserve(num_sequences);
    for (int64_t index = 0; index < num_sequences; ++index) add_sequence(arguments, shape, index);
}

int64_t StepBatch::neighbours(int64_t first, int64_t last) const {
    int64_t count = 1;
    while (first + count < last && tokens[first + count].block == tokens[first].block &&
           tokens[first + count].slot == tokens[first].slot + count) {
        ++count;
    }
    return count;
}

void StepBatch::add_sequence(const StepArguments& arguments, const CacheShape& shape, int64_t index) {
    BatchSequence sequence{};
    sequence.first_token = arguments.sequence_offsets[index];
    sequence.num_tokens = arguments.sequence_offsets[index + 1] - sequence.first_token;
    sequence.first_position = arguments.context_lengths[index] - sequence.num_tokens;
    sequence.first_block = static_cast<int64_t>(blocks.size());
    const std::string name = "sequence " + std::to_string(index);
    require(sequence.first_position >= 0, name + " has more tokens than its context_length says");
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
        require(arguments.positions[sequence.first_token + i] == sequence.first_position + i,
                name + ": its positions must be the last of its context_length, one after another");
    }
    const int64_t num_blocks = ceil_div(sequence.context_length(), kBlock);
    const int64_t first_page = arguments.page_table_offsets[index];
    if (first_page + ceil_div(num_blocks, shape.blocks_per_page) > arguments.page_table_offsets[index + 1]) {
        throw std::out_of_range(name + ": its page table is too short for its context_length");
    }
    for (int64_t block = 0; block < num_blocks; ++block) {
        const int64_t page = arguments.page_table[first_page + block / shape.blocks_per_page];
        blocks.push_back(static_cast<int32_t>(page * shape.blocks_per_page + block % shape.blocks_per_page));
    }
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
        const int64_t position = sequence.first_position + i;
        const int64_t block = position / kBlock;
        // Whoever opens a block and ends in it leaves it finite to the end; later tokens of the sequence overwrite
        // that.
        const bool clears = i + 1 == sequence.num_tokens && block * kBlock >= sequence.first_position;
        tokens.push_back({position, blocks[sequence.first_block + block], static_cast<int>(position % kBlock), clears});
    }
    sequences.push_back(sequence);
}

}  // namespace postroad
