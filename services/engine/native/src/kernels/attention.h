// Attention over blocks of keys and values (arXiv 2205.14135), in spans of kSpan keys that begin at multiples of kSpan.
//
// Each span is computed by itself: its scores, their maximum and sum, and the weighted values ("a record"). Records are
// then folded in the order of the spans. So a row's result does not depend on which thread computed which span, nor on
// whether the row was computed alone (decode) or among others (prefill).
//
// How scores and weighted values are multiplied is up to Products, see attention_products.h.
#pragma once

#include <optional>
#include <type_traits>

#include "kernels/attention_products.h"
#include "kernels/functions.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

namespace postroad {
namespace {
namespace attention {

// Keys of a span, counted from its first one; `last` is exclusive.
struct Keys {
    int first, last;
};

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

// A span's blocks, widened, one after another.
template <class Fmt>
inline Blocks widen_blocks(const Blocks& from, int num_blocks, int64_t block_words, uint32_t* widened) {
    static constexpr int32_t kInOrder[kSpan / kBlock] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int block = 0; block < num_blocks; ++block) {
        const int next = block + 1 < num_blocks ? block + 1 : block;
        widen<Fmt>(from[block], block_words * Fmt::kPerWord, from[next], widened + block * block_words);
    }
    return {widened, kInOrder, block_words};
}

// x where a row sees the keys from `key` on, `other` where not.
inline simd::Floats where_visible(simd::Floats x, int key, Keys visible, simd::Floats other) {
    const simd::Floats kept = simd::keep_first(x, visible.last - key, other);
    return key < visible.first ? simd::keep_first(other, visible.first - key, kept) : kept;
}

constexpr int kParts = 4;  // partial results of a row, so that vectors need not wait for each other

// Calls body(part, key, are_visible) for the vectors of keys that a row sees; std::true_type where it sees all of them.
template <class Body>
inline void for_each_vector(Keys visible, const Body& body) {
    constexpr int kWidth = simd::kWidth;
    int key = visible.first / kWidth * kWidth;
    if (key < visible.first) {
        body(0, key, std::false_type{});
        key += kWidth;
    }
    for (; key + kParts * kWidth <= visible.last; key += kParts * kWidth) {
        for (int part = 0; part < kParts; ++part) body(part, key + part * kWidth, std::true_type{});
    }
    for (; key + kWidth <= visible.last; key += kWidth) body(0, key, std::true_type{});
    if (key < visible.last) body(0, key, std::false_type{});
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

inline simd::Floats power_of_two(F32, simd::Floats x) { return exp2(x); }
inline simd::Floats power_of_two(Bf16, simd::Floats x) { return rough_exp2(x); }

// The largest score of the keys that a row sees.
inline float largest_score(const float* scores, Keys visible) {
    const simd::Floats lowest = simd::broadcast(-3.0e38f);
    simd::Floats maxima[kParts] = {lowest, lowest, lowest, lowest};
    for_each_vector(visible, [&](int part, int key, auto are_visible) {
        const simd::Floats some = simd::load(scores + key);
        maxima[part] = simd::max(are_visible ? some : where_visible(some, key, visible, lowest), maxima[part]);
    });
    return simd::largest(simd::max(simd::max(maxima[0], maxima[1]), simd::max(maxima[2], maxima[3])));
}

// Scores become weights 2^(score - largest), as elements; keys that the row does not see get weight 0. Where values
// have scales, these go into the weights that the values are multiplied by, and not into their sum, which is returned.
// `weights` may lie where `scores` do.
template <class Fmt>
inline float weigh_row(const float* scores, Keys visible, Keys computed, float largest, const float* value_scales,
                       typename Fmt::Element* weights) {
    const simd::Floats offset = simd::broadcast(largest), none = simd::zero();
    int key = computed.first;
    for (; key + simd::kWidth <= visible.first; key += simd::kWidth) simd::store_elements(weights + key, none);
    simd::Floats sums[kParts] = {none, none, none, none};
    for_each_vector(visible, [&](int part, int key, auto are_visible) {
        const auto visible_only = [&](simd::Floats x) {
            return are_visible ? x : where_visible(x, key, visible, none);
        };
        simd::Floats weight = visible_only(power_of_two(Fmt{}, simd::sub(simd::load(scores + key), offset)));
        sums[part] = simd::add(sums[part], weight);
        // NaN where nobody has written.
        if (value_scales) weight = visible_only(simd::mul(weight, simd::load(value_scales + key)));
        simd::store_elements(weights + key, weight);
    });
    const int end = static_cast<int>(round_up(visible.last, simd::kWidth));
    for (key = end > key ? end : key; key < computed.last; key += simd::kWidth)
        simd::store_elements(weights + key, none);
    return simd::sum(simd::add(simd::add(sums[0], sums[1]), simd::add(sums[2], sums[3])));
}

// What one call needs beside its operands, carved out of its scratch words.
struct Scratch {
    float* scores;     // [rows][kSpan]; then a row's weights, elements, from where it begins
    float* totals;     // [rows] records
    float* records;    // [rows] records
    uint32_t* keys;    // int8: a span's blocks, widened
    uint32_t* values;  // likewise

    explicit Scratch(const AttentionCall& call) {
        const int64_t record_floats = call.rows * (call.value_stride + kRecordTail);
        scores = reinterpret_cast<float*>(call.scratch);
        totals = scores + int64_t{call.rows} * kSpan;
        records = totals + record_floats;
        keys = reinterpret_cast<uint32_t*>(records + record_floats);
        values = keys + kSpan * call.value_stride;
    }
};

// The blocks of a span that at least one of the call's rows sees.
template <class Fmt, KvFormat kKv>
struct Span {
    static constexpr bool kInt8 = kKv == KvFormat::kInt8;

    int64_t first_key;
    int last_key;     // counted from the first, exclusive
    int first_block;  // of the span's blocks
    Blocks keys, values;
    std::optional<SpanScales> scales;

    Span(const AttentionCall& call, int64_t index, const Scratch& scratch) : first_key(index * kSpan) {
        last_key = visible_keys(call, call.rows - 1, first_key, kSpan).last;
        first_block = visible_keys(call, 0, first_key, last_key).first / kBlock;
        const int num_blocks = static_cast<int>(ceil_div(last_key, kBlock)) - first_block;
        const int32_t* blocks = call.blocks + first_key / kBlock + first_block;
        keys = {call.keys, blocks, call.block_stride};
        values = {call.values, blocks, call.block_stride};
        if constexpr (kInt8) {
            scales.emplace(call, blocks, Keys{first_block * kBlock, (first_block + num_blocks) * kBlock});
            const int64_t key_words = ceil_div(call.head_dim, Fmt::kPerWord) * kBlock;
            keys = widen_blocks<Fmt>(keys, num_blocks, key_words, scratch.keys);
            values = widen_blocks<Fmt>(values, num_blocks, kBlock / Fmt::kPerWord * call.value_stride, scratch.values);
        }
    }
};

// The records of rows [first_row, first_row + num_rows) for one span.
template <class Fmt, KvFormat kKv, class Products>
inline void attend_rows(const AttentionCall& call, const Span<Fmt, kKv>& span, const Products& products, int first_row,
                        int num_rows, const Scratch& scratch, float* records) {
    const auto visible = [&](int row) { return visible_keys(call, first_row + row, span.first_key, span.last_key); };
    const int first_block = visible(0).first / kBlock;
    const int num_blocks = static_cast<int>(ceil_div(visible(num_rows - 1).last, kBlock)) - first_block;
    const Keys computed{first_block * kBlock, (first_block + num_blocks) * kBlock};
    const Blocks keys = span.keys.from(first_block - span.first_block);
    const Blocks values = span.values.from(first_block - span.first_block);
    const uint32_t* queries = call.queries + first_row * call.query_stride;
    const bool fetches = call.rows <= Products::kRows && !span.kInt8;  // more rows: others have fetched them lately
    products.score(call, {queries, call.query_stride, num_rows}, keys, num_blocks, fetches ? &values : nullptr,
                   scratch.scores + computed.first);
    const int64_t record_stride = call.value_stride + kRecordTail;
    records += first_row * record_stride;
    // Rows are independent of each other: a loop for each of the two long chains of a row lets them overlap.
    const auto scores = [&](int row) { return scratch.scores + row * kSpan; };
    const auto record = [&](int row) { return Record(records + row * record_stride, call.value_stride); };
    for (int row = 0; row < num_rows; ++row) {
        if constexpr (span.kInt8) scale_row(span.scales->keys, computed, scores(row));
        if (call.cap > 0.0f) cap_row(call, computed, scores(row));
        record(row).largest = largest_score(scores(row), visible(row));
    }
    for (int row = 0; row < num_rows; ++row) {
        auto* weights = reinterpret_cast<typename Fmt::Element*>(scores(row));
        record(row).sum = weigh_row<Fmt>(scores(row), visible(row), computed, record(row).largest,
                                         span.kInt8 ? span.scales->values : nullptr, weights);
    }
    const uint32_t* weights = reinterpret_cast<uint32_t*>(scratch.scores) + computed.first / Fmt::kPerWord;
    products.weigh(call, {weights, kSpan, num_rows}, values, num_blocks, records, record_stride);
}

// The records of all rows for one span.
template <class Fmt, KvFormat kKv, class Products>
inline void attend_span(const AttentionCall& call, int64_t index, Products& products, const Scratch& scratch,
                        float* records) {
    const Span<Fmt, kKv> span(call, index, scratch);
    const int64_t tiles = ceil_div(call.rows, Products::kRows);
    const int height = static_cast<int>(ceil_div(call.rows, tiles));
    for (int row = 0; row < call.rows; row += height) {
        const int rows = call.rows - row < height ? call.rows - row : height;
        products.prepare(rows);
        attend_rows<Fmt, kKv>(call, span, products, row, rows, scratch, records);
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

template <class Fmt, KvFormat kKv, class Products>
void attend(const AttentionCall& call) {
    const Scratch scratch(call);
    Products products;
    const int64_t record_stride = call.value_stride + kRecordTail;
    if (call.partials) {
        for (int64_t span = call.first_span; span < call.last_span; ++span) {
            float* records = call.partials + (span - call.first_span) * call.rows * record_stride;
            attend_span<Fmt, kKv>(call, span, products, scratch, records);
        }
        return;
    }
    for (int64_t span = call.first_span; span < call.last_span; ++span) {
        const bool is_first = span == call.first_span;
        attend_span<Fmt, kKv>(call, span, products, scratch, is_first ? scratch.totals : scratch.records);
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
