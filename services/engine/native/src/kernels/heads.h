// Heads on their way from a linear layer to attention: queries to their rows, keys and values into their block.
//
// Several tokens of a block at once: each line of the block is then written once, and a head's keys are turned from
// rows of tokens to columns in registers.
#pragma once

#include "kernels/kernels.h"
#include "kernels/rows.h"

namespace postroad {
namespace {

inline const float* projected_head(const HeadsCall& call, int token, int head) {
    return call.projected + token * call.projected_stride + int64_t{head} * call.head_dim;
}

// Normalises a token's head if `weight` is given, rotates it (half-split layout), and leaves it, times `scale`, in
// `output`.
template <class Element>
inline void turn_head(const HeadsCall& call, int token, int head, const float* weight, float scale, Element* output) {
    const float* x = projected_head(call, token, head);
    const float* all_cosines = call.cosines + token * call.angle_stride;
    const float* all_sines = call.sines + token * call.angle_stride;
    const int half = call.rotated_pairs;
    const float factor = weight ? inverse_rms(x, call.head_dim, call.norm_eps) : 1.0f;
    const simd::Floats factors = simd::broadcast(factor), scales = simd::broadcast(scale);
    const auto normed = [&](int i) {
        const simd::Floats some = simd::load(x + i);
        return weight ? simd::mul(simd::mul(some, factors), simd::load(weight + i)) : some;
    };
    const auto normed_one = [&](int i) { return weight ? x[i] * factor * weight[i] : x[i]; };
    int i = 0;
    for (; i + simd::kWidth <= half; i += simd::kWidth) {
        const simd::Floats a = normed(i), b = normed(i + half);
        const simd::Floats cosines = simd::load(all_cosines + i), sines = simd::load(all_sines + i);
        const simd::Floats first = simd::sub(simd::mul(a, cosines), simd::mul(b, sines));
        const simd::Floats second = simd::add(simd::mul(b, cosines), simd::mul(a, sines));
        simd::store_elements(output + i, simd::mul(first, scales));
        simd::store_elements(output + i + half, simd::mul(second, scales));
    }
    for (; i < half; ++i) {
        const float a = normed_one(i), b = normed_one(i + half);
        store_element(output + i, (a * all_cosines[i] - b * all_sines[i]) * scale);
        store_element(output + i + half, (b * all_cosines[i] + a * all_sines[i]) * scale);
    }
    for (i = 2 * half; i + simd::kWidth <= call.head_dim; i += simd::kWidth) {
        simd::store_elements(output + i, simd::mul(normed(i), scales));
    }
    for (; i < call.head_dim; ++i) store_element(output + i, normed_one(i) * scale);
}

template <class Fmt>
inline void place_query(const HeadsCall& call, int head) {
    const int group = call.num_heads / call.num_kv_heads;
    auto* query = static_cast<typename Fmt::Element*>(call.queries) + head / group * call.group_stride +
                  head % group * call.query_stride;
    for (int token = 0; token < call.num_tokens; ++token, query += group * call.query_stride) {
        turn_head(call, token, head, call.q_norm, call.query_scale, query);
    }
}

// Rows of tokens become columns, from the run's slot on.
inline void store_columns(const HeadsCall& call, const uint32_t* rows, int64_t words, uint32_t* block) {
    const int64_t stride = heads_scratch_stride(call.head_dim);
    int64_t word = 0;
    for (; call.num_tokens == kBlock && word + kBlock <= words; word += kBlock) {
        simd::transpose(rows + word, stride, block + word * kBlock);
    }
    for (; word < words; ++word) {
        uint32_t* column = block + word * kBlock + call.slot;
        for (int token = 0; token < call.num_tokens; ++token) column[token] = rows[token * stride + word];
    }
}

template <class Fmt>
inline void place_key(const HeadsCall& call, int kv_head) {
    const int64_t words = ceil_div(call.head_dim, Fmt::kPerWord);
    for (int token = 0; token < call.num_tokens; ++token) {
        uint32_t* row = call.scratch + token * heads_scratch_stride(call.head_dim);
        row[words - 1] = 0;  // half of which may be no element
        turn_head(call, token, call.num_heads + kv_head, call.k_norm, 1.0f,
                  reinterpret_cast<typename Fmt::Element*>(row));
    }
    store_columns(call, call.scratch, words, call.keys + kv_head * call.head_words);
}

// Attention multiplies values of slots not yet written by 0: what a former owner left there may not be finite.
template <class Fmt>
inline void clear_later_values(const HeadsCall& call, int slot, uint32_t* words) {
    auto* row = reinterpret_cast<typename Fmt::Element*>(words);
    for (int half = slot % Fmt::kPerWord + 1; half < Fmt::kPerWord; ++half) {
        for (int i = 0; i < call.head_dim; ++i) store_element(row + i * Fmt::kPerWord + half, 0.0f);
    }
    const int64_t later_rows = kBlock / Fmt::kPerWord - 1 - slot / Fmt::kPerWord;
    std::memset(words + call.value_stride, 0, sizeof(uint32_t) * later_rows * call.value_stride);
}

// One token's, beside those of its neighbour in time.
template <class Fmt>
inline void store_value(const HeadsCall& call, const float* value, typename Fmt::Element* row) {
    int i = 0;
    for (; i + simd::kWidth <= call.head_dim; i += simd::kWidth) {
        typename Fmt::Element elements[simd::kWidth];
        simd::store_elements(elements, simd::load(value + i));
        simd::spread(row + i * Fmt::kPerWord, elements);
    }
    for (; i < call.head_dim; ++i) store_element(row + i * Fmt::kPerWord, value[i]);
}

// Two tokens' that share words.
inline void store_value_pair(const HeadsCall& call, const float* even, const float* odd, uint16_t* row) {
    int i = 0;
    for (; i + simd::kWidth <= call.head_dim; i += simd::kWidth) {
        simd::store_pairs(row + 2 * i, simd::load(even + i), simd::load(odd + i));
    }
    for (; i < call.head_dim; ++i) {
        store_element(row + 2 * i, even[i]);
        store_element(row + 2 * i + 1, odd[i]);
    }
}

template <class Fmt>
inline void place_value(const HeadsCall& call, int kv_head) {
    const int head = call.num_heads + call.num_kv_heads + kv_head;
    uint32_t* block = call.values + kv_head * call.head_words;
    uint32_t* words = block;
    for (int token = 0; token < call.num_tokens; ++token) {
        const int slot = call.slot + token;
        words = block + slot / Fmt::kPerWord * call.value_stride;
        auto* row = reinterpret_cast<typename Fmt::Element*>(words) + slot % Fmt::kPerWord;
        const float* value = projected_head(call, token, head);
        if constexpr (Fmt::kPerWord == 2) {
            if (slot % 2 == 0 && token + 1 < call.num_tokens) {
                store_value_pair(call, value, projected_head(call, ++token, head), row);
                continue;
            }
        }
        store_value<Fmt>(call, value, row);
    }
    if (call.clears_rest) clear_later_values<Fmt>(call, call.slot + call.num_tokens - 1, words);
}

// The scale that brings x into [-127, 127]; not finite where x is not, so that the step is seen to be broken.
inline float int8_scale(const float* x, int size) {
    float largest = 0.0f, probe = 0.0f;
    for (int i = 0; i < size; ++i) {
        const float magnitude = __builtin_fabsf(x[i]);
        largest = magnitude > largest ? magnitude : largest;
        probe += x[i] * 0.0f;
    }
    return largest / 127.0f + probe;
}

inline int8_t to_int8(float x, float inverse_scale) { return static_cast<int8_t>(__builtin_rintf(x * inverse_scale)); }

// A key or value in int8, element i at bytes[place(i)].
template <class Place>
inline void store_int8(const float* x, int size, int8_t* bytes, float& scale, const Place& place) {
    scale = int8_scale(x, size);
    const float inverse = scale > 0.0f && scale < 1e30f ? 1.0f / scale : 0.0f;
    for (int i = 0; i < size; ++i) bytes[place(i)] = inverse == 0.0f ? int8_t{0} : to_int8(x[i], inverse);
}

template <class Fmt>
inline void place_int8_key(const HeadsCall& call, int kv_head) {
    auto* key = reinterpret_cast<float*>(call.scratch);
    auto* block = reinterpret_cast<int8_t*>(call.keys + kv_head * call.head_words);
    for (int token = 0; token < call.num_tokens; ++token) {
        const int slot = call.slot + token;
        turn_head(call, token, call.num_heads + kv_head, call.k_norm, 1.0f, key);
        store_int8(key, call.head_dim, block + slot * Fmt::kPerWord, call.scales[kv_head * call.head_words + slot],
                   [](int i) { return i / Fmt::kPerWord * kBlock * Fmt::kPerWord + i % Fmt::kPerWord; });
    }
}

// Later slots need no zeros: any int8 times a weight of 0 is 0, and weights are 0 whatever a slot's scale is.
template <class Fmt>
inline void place_int8_value(const HeadsCall& call, int kv_head) {
    auto* block = reinterpret_cast<int8_t*>(call.values + kv_head * call.head_words);
    for (int token = 0; token < call.num_tokens; ++token) {
        const int slot = call.slot + token;
        int8_t* row = block + slot / Fmt::kPerWord * call.value_stride * Fmt::kPerWord + slot % Fmt::kPerWord;
        store_int8(projected_head(call, token, call.num_heads + call.num_kv_heads + kv_head), call.head_dim, row,
                   call.scales[kv_head * call.head_words + kBlock + slot], [](int i) { return i * Fmt::kPerWord; });
    }
}

template <class Fmt, KvFormat kKv>
void heads(const HeadsCall& call) {
    for (int head = 0; head < call.num_heads; ++head) place_query<Fmt>(call, head);
    for (int head = 0; head < call.num_kv_heads; ++head) {
        if constexpr (kKv == KvFormat::kInt8) {
            place_int8_key<Fmt>(call, head);
        } else {
            place_key<Fmt>(call, head);
        }
    }
    for (int head = 0; head < call.num_kv_heads; ++head) {
        if constexpr (kKv == KvFormat::kInt8) {
            place_int8_value<Fmt>(call, head);
        } else {
            place_value<Fmt>(call, head);
        }
    }
}

}  // namespace
}  // namespace postroad
