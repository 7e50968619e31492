// Attention over blocks of keys and values (arXiv 2205.14135), in spans of kSpan keys that begin at multiples of kSpan.
//
// Each span is computed by itself: its scores, their maximum and sum, and the weighted values ("a record"). Records are
// then folded in the order of the spans. So a row's result does not depend on which thread computed which span, nor on
// whether the row was computed alone (decode) or among others (prefill).
#pragma once

#include "kernels/functions.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "kernels/tile.h"

namespace postroad {
namespace {
namespace attention {

// Two neighbouring blocks of keys: 32 columns. While they are multiplied, their values and the next two blocks of keys
// are fetched: a decode reads each of them once, from memory.
template <bool kFetches>
struct KeyColumns {
    const uint32_t* first;
    const uint32_t* second;
    const uint32_t* upcoming[4];

    const uint32_t* address(int64_t, int column) const {
        return column < kBlock ? first + column : second + column - kBlock;
    }
    static constexpr int64_t stride() { return kBlock; }
    void prefetch(int64_t word) const {
        if constexpr (kFetches) {
            for (const uint32_t* block : upcoming) simd::prefetch(block + word * kBlock);
        }
    }
};

// Some columns of values: a run per block of tokens.
struct ValueColumns {
    const uint32_t* values;
    const int32_t* blocks;
    int64_t block_stride;
    int64_t row_stride;

    const uint32_t* address(int64_t run, int column) const { return values + blocks[run] * block_stride + column; }
    int64_t stride() const { return row_stride; }
    static void prefetch(int64_t) {}
};

// A row's partial result: weighted values [value_stride], then the maximum of its scores and the sum of its weights.
struct Record {
    float* values;
    float& largest;
    float& sum;

    Record(float* record, int64_t value_stride)
        : values(record), largest(record[value_stride]), sum(record[value_stride + 1]) {}
};

// Keys of a span, counted from its first one; `last` is exclusive.
struct Keys {
    int first, last;
};

// Those that row `row` sees in the span that starts at `first_key`, of which there are `available`; may be none.
inline Keys visible_keys(const AttentionCall& call, int row, int64_t first_key, int available) {
    const auto bounded = [&](int64_t key) { return static_cast<int>(key < 0 ? 0 : key < available ? key : available); };
    const int64_t position = call.first_position + row / call.group - first_key;
    return {bounded(position + 1 - call.window), bounded(position + 1)};
}

template <class Fmt, int kRows, bool kFetches>
inline void score_tile(const AttentionCall& call, int row, const KeyColumns<kFetches>& keys, float* scores) {
    constexpr int kColumns = simd::kTileVectors * simd::kWidth;
    const int64_t words = ceil_div(call.head_dim, Fmt::kPerWord);
    for (int column = 0; column < 2 * kBlock; column += kColumns) {
        KeyColumns<kFetches> some = keys;
        some.first = column < kBlock ? keys.first + column : keys.second + column - kBlock;
        tile<Fmt, kRows, simd::kTileVectors>(call.queries + row * call.query_stride, call.query_stride, some, 1, words,
                                             scores + row * kSpan + column, kSpan);
    }
}

template <class Fmt>
inline void score_blocks(const AttentionCall& call, const int32_t* blocks, int num_blocks, float* scores) {
    const auto at = [&](const uint32_t* base, int block) {  // of an odd number the last is computed twice, and masked
        return base + blocks[block < num_blocks ? block : num_blocks - 1] * call.block_stride;
    };
    for (int block = 0; block < num_blocks; block += 2) {
        const uint32_t* first = at(call.keys, block);
        const uint32_t* second = at(call.keys, block + 1);
        for_each_tile<simd::kTileRows>(0, call.rows, [&](auto rows, int64_t row) {
            float* tile_scores = scores + block * kBlock;
            const auto tile_row = static_cast<int>(row);
            if (row > 0)
                return score_tile<Fmt, rows.value>(call, tile_row, KeyColumns<false>{first, second, {}}, tile_scores);
            const KeyColumns<true> keys{first,
                                        second,
                                        {at(call.values, block), at(call.values, block + 1), at(call.keys, block + 2),
                                         at(call.keys, block + 3)}};
            score_tile<Fmt, rows.value>(call, tile_row, keys, tile_scores);
        });
    }
}

// x where a row sees the keys from `key` on, `other` where not.
inline simd::Floats where_visible(simd::Floats x, int key, Keys visible, simd::Floats other) {
    const simd::Floats kept = simd::keep_first(x, visible.last - key, other);
    return key < visible.first ? simd::keep_first(other, visible.first - key, kept) : kept;
}

inline void cap_row(const AttentionCall& call, Keys keys, float* scores) {
    const simd::Floats cap = simd::broadcast(call.cap);
    for (int key = keys.first; key < keys.last; key += simd::kWidth) {
        simd::store(scores + key, simd::mul(tanh(simd::load(scores + key)), cap));
    }
}

// Scores become weights 2^(score - largest), as elements; keys that the row does not see get weight 0.
template <class Fmt>
inline void weigh_row(const float* scores, Keys visible, Keys computed, typename Fmt::Element* weights,
                      float& largest, float& sum) {
    const simd::Floats lowest = simd::broadcast(-3.0e38f);
    const int first = visible.first / simd::kWidth * simd::kWidth;
    simd::Floats maxima = lowest;
    for (int key = first; key < visible.last; key += simd::kWidth) {
        maxima = simd::max(where_visible(simd::load(scores + key), key, visible, lowest), maxima);
    }
    largest = simd::largest(maxima);
    const simd::Floats offset = simd::broadcast(largest);
    simd::Floats sums = simd::zero();
    int key = computed.first;
    for (; key < first; key += simd::kWidth) simd::store_elements(weights + key, simd::zero());
    for (; key < visible.last; key += simd::kWidth) {
        const simd::Floats weight = exp2(simd::sub(simd::load(scores + key), offset));
        const simd::Floats seen = where_visible(weight, key, visible, simd::zero());
        sums = simd::add(sums, seen);
        simd::store_elements(weights + key, seen);
    }
    sum = simd::sum(sums);
    for (; key < computed.last; key += simd::kWidth) simd::store_elements(weights + key, simd::zero());
}

template <class Fmt, int kVectors>
inline void weigh_values(const AttentionCall& call, const int32_t* blocks, int num_blocks, const uint32_t* weights,
                         int64_t column, float* records) {
    const ValueColumns values{call.values + column, blocks, call.block_stride, call.value_stride};
    const int64_t record_stride = call.value_stride + kRecordTail;
    constexpr int64_t kWeightsStride = kSpan / Fmt::kPerWord;
    for_each_tile<simd::kTileRows>(0, call.rows, [&](auto rows, int64_t row) {
        tile<Fmt, rows.value, kVectors>(weights + row * kWeightsStride, kWeightsStride, values, num_blocks,
                                        kBlock / Fmt::kPerWord, records + row * record_stride + column, record_stride);
    });
}

// The records of all rows for one span.
template <class Fmt>
inline void attend_span(const AttentionCall& call, int64_t span, float* scores, uint32_t* weights, float* records) {
    const int64_t first_key = span * kSpan;
    const int last_key = visible_keys(call, call.rows - 1, first_key, kSpan).last;
    const int first_block = visible_keys(call, 0, first_key, last_key).first / kBlock;
    const int num_blocks = static_cast<int>(ceil_div(last_key, kBlock)) - first_block;
    const Keys computed{first_block * kBlock, (first_block + num_blocks) * kBlock};
    const int32_t* blocks = call.blocks + first_key / kBlock + first_block;
    score_blocks<Fmt>(call, blocks, num_blocks, scores + computed.first);
    for (int row = 0; row < call.rows; ++row) {
        const Record record(records + row * (call.value_stride + kRecordTail), call.value_stride);
        auto* row_weights = reinterpret_cast<typename Fmt::Element*>(weights) + row * kSpan;
        float* row_scores = scores + row * kSpan;
        if (call.cap > 0.0f) cap_row(call, computed, row_scores);
        weigh_row<Fmt>(row_scores, visible_keys(call, row, first_key, last_key), computed, row_weights, record.largest,
                       record.sum);
    }
    weights += computed.first / Fmt::kPerWord;
    constexpr int kColumns = simd::kTileVectors * simd::kWidth;
    int64_t column = 0;
    for (; column + kColumns <= call.value_stride; column += kColumns) {
        weigh_values<Fmt, simd::kTileVectors>(call, blocks, num_blocks, weights, column, records);
    }
    for (; column < call.value_stride; column += simd::kWidth) {
        weigh_values<Fmt, 1>(call, blocks, num_blocks, weights, column, records);
    }
}

// total = total and record, brought to the larger of their maxima. A record without visible keys changes nothing.
inline void fold(const Record& total, const Record& record, int64_t value_stride) {
    if (record.sum == 0.0f) return;
    const float largest = total.largest > record.largest ? total.largest : record.largest;
    const float keep = exp2(total.largest - largest), take = exp2(record.largest - largest);
    total.largest = largest;
    total.sum = total.sum * keep + record.sum * take;
    const simd::Floats keeps = simd::broadcast(keep), takes = simd::broadcast(take);
    for (int64_t i = 0; i < value_stride; i += simd::kWidth) {
        const simd::Floats taken = simd::mul(simd::load(record.values + i), takes);
        simd::store(total.values + i, simd::fma(simd::load(total.values + i), keeps, taken));
    }
}

template <class Fmt>
inline void write_row(const AttentionCall& call, int row, const Record& total) {
    auto* output = static_cast<typename Fmt::Element*>(call.output) + row / call.group * call.output_stride +
                   row % call.group * call.head_dim;
    const simd::Floats factor = simd::broadcast(1.0f / total.sum);
    int i = 0;
    for (; i + simd::kWidth <= call.head_dim; i += simd::kWidth) {
        simd::store_elements(output + i, simd::mul(simd::load(total.values + i), factor));
    }
    for (; i < call.head_dim; ++i) store_element(output + i, total.values[i] * (1.0f / total.sum));
}

// What one call needs beside its operands, carved out of its scratch words.
struct Scratch {
    float* scores;      // [rows][kSpan]
    uint32_t* weights;  // [rows][kSpan] elements
    float* totals;      // [rows] records
    float* records;     // [rows] records

    explicit Scratch(const AttentionCall& call) {
        const int64_t record_floats = call.rows * (call.value_stride + kRecordTail);
        scores = reinterpret_cast<float*>(call.scratch);
        weights = call.scratch + int64_t{call.rows} * kSpan;
        totals = reinterpret_cast<float*>(weights + int64_t{call.rows} * kSpan);
        records = totals + record_floats;
    }
};

template <class Fmt>
void attend(const AttentionCall& call) {
    const Scratch scratch(call);
    const int64_t record_stride = call.value_stride + kRecordTail;
    if (call.partials) {
        for (int64_t span = call.first_span; span < call.last_span; ++span) {
            float* records = call.partials + (span - call.first_span) * call.rows * record_stride;
            attend_span<Fmt>(call, span, scratch.scores, scratch.weights, records);
        }
        return;
    }
    for (int64_t span = call.first_span; span < call.last_span; ++span) {
        const bool is_first = span == call.first_span;
        attend_span<Fmt>(call, span, scratch.scores, scratch.weights, is_first ? scratch.totals : scratch.records);
        for (int row = 0; !is_first && row < call.rows; ++row) {
            const Record total(scratch.totals + row * record_stride, call.value_stride);
            fold(total, Record(scratch.records + row * record_stride, call.value_stride), call.value_stride);
        }
    }
    for (int row = 0; row < call.rows; ++row) {
        write_row<Fmt>(call, row, Record(scratch.totals + row * record_stride, call.value_stride));
    }
}

template <class Fmt>
void fold_partials(const AttentionCall& call) {
    const int64_t record_stride = call.value_stride + kRecordTail;
    for (int row = 0; row < call.rows; ++row) {
        const Record total(call.partials + row * record_stride, call.value_stride);
        for (int64_t span = 1; span < call.last_span - call.first_span; ++span) {
            float* record = call.partials + (span * call.rows + row) * record_stride;
            fold(total, Record(record, call.value_stride), call.value_stride);
        }
        write_row<Fmt>(call, row, total);
    }
}

}  // namespace attention
}  // namespace
}  // namespace postroad
