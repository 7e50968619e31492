// The arithmetic of a step, as a table of functions per instruction set and number format.
//
// What every kernel promises: a row's result depends on that row alone, bit for bit. However many rows are computed in
// one call, and however the work is cut into calls, each number is reduced in the same order.
//
// Layouts. "Elements" are bf16 or float32, "words" 32 bits: a pair of bf16 or one float32 (elements.h).
//   Linear weights: panels of 32 output features, each [words of the input][32] words.
//   Integer weights: panels of 32 output features, each a block per 32 inputs. A block holds codes as words, [8][32] of
//     four signed bytes or [4][32] of eight nibbles, then, where the format has them, 32 scales and 32 minima, float16,
//     or, of kInt4, 32 pairs of bytes: a step, 1 to 17, and a base, signed. The low nibbles of a word are the codes of
//     four inputs, the high nibbles those of the next four.
//   Integer activations: rows of [words] of four signed bytes, then [groups] of float32 scales of groups of neighbours,
//     then as many offsets: what a group's sum contributes to a product because codes are multiplied as unsigned
//     numbers (QuantizeCall). Where weights do not have scales of groups, a row is one group, a long row, and what one
//     byte is too short for has a high byte, too (LongRow). Many long rows are tiled (LongRows).
//   Keys: blocks of 16 tokens, each [words of a head][16] words.
//   Values: blocks of 16 tokens, each [words of 16 tokens][head_stride] words; a word holds neighbours in time.
//   Keys and values in int8: likewise, with a byte for each element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elements.h"

namespace postroad {

constexpr int kPanel = 32;  // output features of a packed panel
constexpr int kBlock = 16;  // tokens of a block of keys or values
constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kSpan = 256;           // tokens whose attention scores are computed together: a multiple of kBlock
constexpr int kWordPadding = 16;     // words: rows of activations, and of weights, are zero up to a multiple of this
constexpr int kGroup = 32;           // neighbours along the input whose weights share a scale
constexpr int kGroupWords = 8;       // of a group's bytes
constexpr int kCodeBias = 128;       // from a signed code to the unsigned one that it is multiplied as
constexpr int kLongRows = 32;        // long rows that have their high bytes in common places
constexpr float kHighStep = 128.0f;  // from one high byte to the next, in low ones
constexpr int kRecordTail = 16;      // floats behind a row's partial attention: its maximum, its sum, and padding

enum class Epilogue {
    kStore,       // output = product + bias, float32
    kAccumulate,  // output += product + bias, float32
    kSiluMul,     // a panel is 16 gate features and the 16 up features that go with them: output = silu(gate) * up,
                  // elements
    kGeluMul,     // the same with gelu (tanh approximation)
};

struct Linear {
    const uint32_t* weights;
    const float* bias;     // in the order of the packed features, padded as they are; null for none
    const float* scales;   // likewise, of formats that scale features
    int64_t out_features;  // as they are packed: for k*Mul, gate and up together
    int64_t in_features;
    int64_t words;        // of an input row, a multiple of kWordPadding
    int64_t panel_words;  // from one panel to the next
    WeightFormat format;
    int64_t panels() const { return ceil_div(out_features, kPanel); }
};

constexpr bool has_nibbles(WeightFormat format) {
    return format == WeightFormat::kInt4 || format == WeightFormat::kInt4Groups;
}

// Words of the codes of a block: a group's, for the features of one panel.
constexpr int64_t code_words(WeightFormat format) {
    return (has_nibbles(format) ? kGroupWords / 2 : kGroupWords) * kPanel;
}

// Words of a block, with what belongs to its codes.
constexpr int64_t block_words(WeightFormat format) {
    constexpr int64_t kHalves = kPanel / 2;
    switch (format) {
        case WeightFormat::kInt8:
            return code_words(format);
        case WeightFormat::kInt8Groups:
        case WeightFormat::kInt4:
            return code_words(format) + kHalves;
        case WeightFormat::kInt4Groups:
            return code_words(format) + 2 * kHalves;
        case WeightFormat::kElements:
            break;
    }
    return 0;
}

// What follows the low bytes of a row that is one group, by the words of its parts. A number is low + kHighStep * high,
// by the row's scale. High bytes are rare, and mostly of the same few words in all rows, so each kLongRows of them list
// these words: each row has its high bytes of the words that are in the list, zeros up to a multiple of kWordPadding.
// Products of up to 2^17 low bytes, and as many high ones, are sums of 32 bits.
struct LongRow {
    int64_t words;  // of the low bytes

    static constexpr int64_t kScale = 0;
    static constexpr int64_t kOffset = 1;
    static constexpr int64_t kHighOffset = 2;
    static constexpr int64_t kHighCount = 3;  // words of the list
    static constexpr int64_t kToFirst = 4;    // words back to the row that has the list
    static constexpr int64_t kHighScale = 5;  // kHighStep times the scale; 0: the row has none
    static constexpr int64_t kHighBytes = kWordPadding;
    constexpr int64_t high_words() const { return kHighBytes + words; }  // the list, as long as high bytes are
    // Only while they are made: a bit for each word that has high bytes.
    constexpr int64_t has_high() const { return high_words() + words; }
    constexpr int64_t end() const { return has_high() + ceil_div(words, 32); }
};

// Up to kLongRows long rows. As they are, or tiled: the low bytes of all of them come first, a line of each row after
// the other, so that tiles are read from successive addresses.
struct LongRows {
    int64_t line_stride;  // words from a line of a row's low bytes to its next one
    int64_t row_stride;   // words from a row's line to the next row's
    int64_t rest;         // words to what follows the low bytes of the first row (LongRow)
    int64_t rest_stride;  // words from there to that of the next row

    LongRows(int64_t words, int64_t stride, int rows, bool are_tiled)
        : line_stride(are_tiled ? rows * kWordPadding : kWordPadding),
          row_stride(are_tiled ? kWordPadding : stride),
          rest(are_tiled ? rows * words : words),
          rest_stride(are_tiled ? stride - words : stride) {}
};

// Words of an integer row.
constexpr int64_t quantized_row_words(WeightFormat format, int64_t words) {
    if (scales_features(format)) return words + LongRow{words}.end();
    return words + 2 * ceil_div(words, kGroupWords);
}

// Up to kLongRows rows of activations to integers, each group by its own magnitudes, for products with weights of
// `format`.
struct QuantizeCall {
    const uint32_t* input;  // rows of [size] elements
    int64_t input_stride;   // words
    int rows;
    int64_t size;
    int64_t words;  // of a row's bytes, a multiple of kWordPadding; bytes from `size` on become 0
    WeightFormat format;
    bool tiles;             // long rows become tiled (LongRows)
    uint32_t* output;       // rows of [quantized_row_words(format, words)]. Offsets are scale * sum, float32, for
    int64_t output_stride;  // kInt4Groups, and -kCodeBias * sum, int32, otherwise.
};

struct LinearCall {
    Linear linear;
    const uint32_t* input;  // rows of elements, or of integers where the weights are
    int64_t input_stride;   // words
    void* output;
    int64_t output_stride;  // floats or elements
    Epilogue epilogue;
    bool tiled_input = false;  // LongRows, each kLongRows of them from the first row of `run` on
};

struct RmsNormCall {
    const float* input;  // [size]
    const float* weight;
    float eps;
    int64_t size;
    void* output;  // elements
};

// Heads of neighbouring tokens of a block: normalised and rotated where the model says so, and queries, keys and values
// put where they belong.
struct HeadsCall {
    const float* projected;  // [num_tokens] rows of queries, keys, values: [num_heads + 2 * num_kv_heads][head_dim]
    int64_t projected_stride;
    int num_tokens;  // up to kBlock
    int num_heads, num_kv_heads, head_dim;
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    float norm_eps;
    float query_scale;
    int rotated_pairs;     // the first so many elements of a head turn with so many after them; 0: none does
    const float* cosines;  // [num_tokens] rows of [rotated_pairs]
    const float* sines;
    int64_t angle_stride;
    uint32_t* scratch;     // [kBlock][heads_scratch_stride(head_dim)]
    void* queries;         // elements; of KV head 0: [num_tokens][heads per KV head][query_stride]
    int64_t query_stride;  // elements
    int64_t group_stride;  // elements from the queries of one KV head to those of the next
    uint32_t* keys;        // the tokens' block, of KV head 0
    uint32_t* values;
    float* scales;         // int8: of the tokens' block and KV head 0, [keys, values][kBlock]
    int64_t head_words;    // words from one KV head's block to the next one's
    int64_t value_stride;  // words of a row of values, were they elements
    int slot;              // of the first token in the block
    bool clears_rest;      // zero the values of the block's later slots: nobody has written them yet
};

// Words of a row of scratch that a HeadsCall needs for each of kBlock tokens.
constexpr int64_t heads_scratch_stride(int64_t head_dim) { return round_up(head_dim, kBlock); }

// Rows of queries of one KV head against some of its sequence's keys and values.
struct AttentionCall {
    const uint32_t* queries;  // [rows][query_stride]; row r belongs to the token at position first_position + r / group
    int64_t query_stride;     // words
    int rows, group;
    int64_t first_position;
    int64_t window;                 // keys that a row sees, the one at its own position included
    int64_t first_span, last_span;  // spans of kSpan keys, last exclusive
    const int32_t* blocks;          // the sequence's blocks
    const uint32_t* keys;           // block 0 of this layer and KV head
    const uint32_t* values;
    const float* scales;   // int8: of block 0, [keys, values][kBlock]
    int64_t block_stride;  // words from one block to the next
    int head_dim;
    int64_t value_stride;   // words of a row of values, were they elements; a multiple of 16
    float cap;              // scores s, of queries that are scaled, become cap * tanh(s); 0: they do not
    uint32_t* scratch;      // attention_scratch_words(...)
    float* partials;        // null: spans are folded and written to `output`; else one record per span and row:
                            // [last_span - first_span][rows][value_stride + kRecordTail]
    void* output;           // elements; of row 0's token
    int64_t output_stride;  // elements from token to token; the rows of a token follow one another
};

// Words of scratch that an AttentionCall of `rows` rows needs: from int8, keys and values are widened there.
inline int64_t attention_scratch_words(int rows, int64_t value_stride, KvFormat format) {
    const int64_t widened = format == KvFormat::kInt8 ? 2 * kSpan * value_stride : 0;
    return widened + rows * (kSpan + 2 * (value_stride + kRecordTail));
}

// What reads and writes the cache of keys and values.
struct KvKernels {
    void (*heads)(const HeadsCall&);
    void (*attend)(const AttentionCall&);
};

struct LinearKernel {
    // Rows [first_row, last_row) of panels [first_panel, last_panel).
    void (*run)(const LinearCall&, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel);
    int row_tile;                      // rows that it computes together at best
    int64_t tiled_from = kNeverTiled;  // rows from which on it takes integers in tiles

    static constexpr int64_t kNeverTiled = INT64_MAX;
};

struct Kernels {
    const char* isa;
    Format format;
    LinearKernel linears[kNumWeightFormats];  // by WeightFormat
    void (*quantize)(const QuantizeCall&);
    void (*rms_norm)(const RmsNormCall&);
    void (*add_rms_norm)(const RmsNormCall&);  // output, float32, += the normalised input
    KvKernels element_kv, int8_kv;
    // The end of an attention whose spans were computed apart: `partials` holds all spans, in order.
    void (*fold_partials)(const AttentionCall&);
    // Each x becomes cap * tanh(x / cap).
    void (*soften)(float* x, int64_t size, float cap);

    const KvKernels& kv(KvFormat kv_format) const { return kv_format == KvFormat::kInt8 ? int8_kv : element_kv; }
};

const Kernels& portable_kernels(Format format);
const Kernels& avx2_kernels(Format format);
const Kernels& avx512_kernels(Format format);
const Kernels& avx512_bf16_kernels(Format format);
const Kernels& amx_kernels(Format format);

}  // namespace postroad
