#include "attention_plan.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace postroad {

AttentionPlan::AttentionPlan(const StepBatch& batch, int64_t num_heads, int64_t num_kv_heads) {
    const int64_t group = num_heads / num_kv_heads;
    const int64_t largest = task_tokens(group);
    for (const BatchSequence& sequence : batch.sequences) {
        const int64_t end = sequence.first_token + sequence.num_tokens;
        const int64_t num_spans = ceil_div(sequence.context_length(), kSpan);
        if (sequence.num_tokens <= largest && num_spans > 1) {  // decodes: long contexts are shared among threads
            const int64_t num_records = num_spans * sequence.num_tokens * group;
            const auto split = static_cast<int64_t>(splits.size());
            splits.push_back({num_spans, this->num_records, num_records});
            this->num_records += num_records * num_kv_heads;
            for (int64_t span = 0; span < num_spans; ++span) {
                tasks.push_back({&sequence, sequence.first_token, sequence.num_tokens, span, span + 1, split});
            }
            continue;
        }
        // The last tokens see the most keys: they go first, so that threads end together.
        for (int64_t last = end; last > sequence.first_token; last -= largest) {
            const int64_t first = std::max(sequence.first_token, last - largest);
            const int64_t position = sequence.first_position + last - sequence.first_token;
            tasks.push_back({&sequence, first, last - first, 0, ceil_div(position, kSpan), -1});
        }
    }
}

}  // namespace postroad
