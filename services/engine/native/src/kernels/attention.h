// Attention over blocks of keys and values (arXiv 2205.14135), in spans of kSpan keys that begin at multiples of kSpan.
//
// Each span is computed by itself: its scores, their maximum and sum, and the weighted values ("a record"). Records are
// then folded in the order of the spans. So a row's result does not depend on which thread computed which span, nor on
// whether the row was computed alone (decode) or among others (prefill).
#pragma once

#include <optional>

#include "kernels/functions.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "kernels/tile.h"

namespace postroad {
namespace {
namespace attention {

// Keys of a span, counted from its first one; `last` is exclusive.
struct Keys {
    int first, last;
};

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

// The scales of a span's keys and values in int8.
struct SpanScales {
    float keys[kSpan];
    float values[kSpan];

    SpanScales(const AttentionCall& call, const int32_t* blocks, Keys computed) {
        for (int key = computed.first, i = 0; key < computed.last; key += kBlock, ++i) {
            const float* scales = call.scales + blocks[i] * call.block_stride;
            std::memcpy(keys + key, scales, sizeof(float) * kBlock);
            std::memcpy(values + key, scales + kBlock, sizeof(float) * kBlock);
        }
    }
};

// int8 as elements, which hold it exactly, in the same order. As much is fetched from `upcoming` on.
template <class Fmt>
inline void widen(const uint32_t* from, int64_t count, const uint32_t* upcoming, uint32_t* to) {
    const auto* bytes = reinterpret_cast<const int8_t*>(from);
    const auto* later = reinterpret_cast<const int8_t*>(upcoming);
    auto* elements = reinterpret_cast<typename Fmt::Element*>(to);
    constexpr int kLineBytes = 64;  // a block's count is a multiple of 32 at least
    for (int64_t i = 0; i < count; i += simd::kWidth) {
        if (i % kLineBytes == 0) simd::prefetch(later + i);
        simd::store_elements(elements + i, simd::load_int8(bytes + i));
    }
}

// A row's partial result: weighted values [value_stride], then the maximum of its scores and the sum of its weights.
struct Record {
    float* values;
    float& largest;
    float& sum;

    Record(float* record, int64_t value_stride)
        : values(record), largest(record[value_stride]), sum(record[value_stride + 1]) {}
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

// Keys in int8 were multiplied without their scales.
inline void scale_row(const float* scales, Keys keys, float* scores) {
    for (int key = keys.first; key < keys.last; key += simd::kWidth) {
        simd::store(scores + key, simd::mul(simd::load(scores + key), simd::load(scales + key)));
    }
}

// Scores become weights 2^(score - largest), as elements; keys that the row does not see get weight 0. Where values have
// scales, these go into the weights that the values are multiplied by, and not into their sum.
template <class Fmt>
inline void weigh_row(const float* scores, Keys visible, Keys computed, const float* value_scales,
                      typename Fmt::Element* weights, float& largest, float& sum) {
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
        if (!value_scales) {
            simd::store_elements(weights + key, seen);
            continue;
        }
        const simd::Floats scaled = simd::mul(seen, simd::load(value_scales + key));  // NaN where nobody has written
        simd::store_elements(weights + key, where_visible(scaled, key, visible, simd::zero()));
    }
    sum = simd::sum(sums);
    for (; key < computed.last; key += simd::kWidth) simd::store_elements(weights + key, simd::zero());
}

template <class Fmt, int kVectors>
inline void weigh_values(const AttentionCall& call, ValueColumns values, int num_blocks, const uint32_t* weights,
                         int64_t column, float* records) {
    values.values += column;
    const int64_t record_stride = call.value_stride + kRecordTail;
    constexpr int64_t kWeightsStride = kSpan / Fmt::kPerWord;
    for_each_tile<simd::kTileRows>(0, call.rows, [&](auto rows, int64_t row) {
        tile<Fmt, rows.value, kVectors>(weights + row * kWeightsStride, kWeightsStride, values, num_blocks,
                                        kBlock / Fmt::kPerWord, records + row * record_stride + column, record_stride);
    });
}

// Likewise from int8: two blocks at a time are widened.
template <class Fmt>
inline void score_int8_blocks(const AttentionCall& call, const int32_t* blocks, int num_blocks, uint32_t* widened,
                              float* scores) {
    const int64_t block_words = ceil_div(call.head_dim, Fmt::kPerWord) * kBlock;
    const int64_t count = block_words * Fmt::kPerWord;
    const auto at = [&](int block) {
        return call.keys + blocks[block < num_blocks ? block : num_blocks - 1] * call.block_stride;
    };
    for (int block = 0; block < num_blocks; block += 2) {
        widen<Fmt>(at(block), count, at(block + 2), widened);
        widen<Fmt>(at(block + 1), count, at(block + 3), widened + block_words);
        const KeyColumns<false> keys{widened, widened + block_words, {}};
        for_each_tile<simd::kTileRows>(0, call.rows, [&](auto rows, int64_t row) {
            score_tile<Fmt, rows.value>(call, static_cast<int>(row), keys, scores + block * kBlock);
        });
    }
}

// The values of a span's blocks, widened, one block after another.
template <class Fmt>
inline ValueColumns widen_values(const AttentionCall& call, const int32_t* blocks, int num_blocks, uint32_t* widened) {
    static constexpr int32_t kInOrder[kSpan / kBlock] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t block_words = kBlock / Fmt::kPerWord * call.value_stride;
    for (int block = 0; block < num_blocks; ++block) {
        const int next = block + 1 < num_blocks ? block + 1 : block;
        widen<Fmt>(call.values + blocks[block] * call.block_stride, kBlock * call.value_stride,
                   call.values + blocks[next] * call.block_stride, widened + block * block_words);
    }
    return {widened, kInOrder, block_words, call.value_stride};
}

// What one call needs beside its operands, carved out of its scratch words.
struct Scratch {
    float* scores;      // [rows][kSpan]
    uint32_t* weights;  // [rows][kSpan] elements
    float* totals;      // [rows] records
    float* records;     // [rows] records
    uint32_t* keys;     // int8: two blocks, widened
    uint32_t* values;   // int8: a span's blocks, widened

    explicit Scratch(const AttentionCall& call) {
        const int64_t record_floats = call.rows * (call.value_stride + kRecordTail);
        scores = reinterpret_cast<float*>(call.scratch);
        weights = call.scratch + int64_t{call.rows} * kSpan;
        totals = reinterpret_cast<float*>(weights + int64_t{call.rows} * kSpan);
        records = totals + record_floats;
        keys = reinterpret_cast<uint32_t*>(records + record_floats);
        values = keys + 2 * kBlock * call.value_stride;
    }
};

// The records of all rows for one span.
template <class Fmt, KvFormat kKv>
inline void attend_span(const AttentionCall& call, int64_t span, const Scratch& scratch, float* records) {
    constexpr bool kInt8 = kKv == KvFormat::kInt8;
    const int64_t first_key = span * kSpan;
    const int last_key = visible_keys(call, call.rows - 1, first_key, kSpan).last;
    const int first_block = visible_keys(call, 0, first_key, last_key).first / kBlock;
    const int num_blocks = static_cast<int>(ceil_div(last_key, kBlock)) - first_block;
    const Keys computed{first_block * kBlock, (first_block + num_blocks) * kBlock};
    const int32_t* blocks = call.blocks + first_key / kBlock + first_block;
    std::optional<SpanScales> scales;
    if constexpr (kInt8) {
        scales.emplace(call, blocks, computed);
        score_int8_blocks<Fmt>(call, blocks, num_blocks, scratch.keys, scratch.scores + computed.first);
    } else {
        score_blocks<Fmt>(call, blocks, num_blocks, scratch.scores + computed.first);
    }
    for (int row = 0; row < call.rows; ++row) {
        const Record record(records + row * (call.value_stride + kRecordTail), call.value_stride);
        auto* row_weights = reinterpret_cast<typename Fmt::Element*>(scratch.weights) + row * kSpan;
        float* row_scores = scratch.scores + row * kSpan;
        if constexpr (kInt8) scale_row(scales->keys, computed, row_scores);
        if (call.cap > 0.0f) cap_row(call, computed, row_scores);
        weigh_row<Fmt>(row_scores, visible_keys(call, row, first_key, last_key), computed,
                       kInt8 ? scales->values : nullptr, row_weights, record.largest, record.sum);
    }
    const uint32_t* weights = scratch.weights + computed.first / Fmt::kPerWord;
    const ValueColumns values = kInt8 ? widen_values<Fmt>(call, blocks, num_blocks, scratch.values)
                                      : ValueColumns{call.values, blocks, call.block_stride, call.value_stride};
    constexpr int kColumns = simd::kTileVectors * simd::kWidth;
    int64_t column = 0;
    for (; column + kColumns <= call.value_stride; column += kColumns) {
        weigh_values<Fmt, simd::kTileVectors>(call, values, num_blocks, weights, column, records);
    }
    for (; column < call.value_stride; column += simd::kWidth) {
        weigh_values<Fmt, 1>(call, values, num_blocks, weights, column, records);
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

template <class Fmt, KvFormat kKv>
void attend(const AttentionCall& call) {
    const Scratch scratch(call);
    const int64_t record_stride = call.value_stride + kRecordTail;
    if (call.partials) {
        for (int64_t span = call.first_span; span < call.last_span; ++span) {
            float* records = call.partials + (span - call.first_span) * call.rows * record_stride;
            attend_span<Fmt, kKv>(call, span, scratch, records);
        }
        return;
    }
    for (int64_t span = call.first_span; span < call.last_span; ++span) {
        const bool is_first = span == call.first_span;
        attend_span<Fmt, kKv>(call, span, scratch, is_first ? scratch.totals : scratch.records);
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
