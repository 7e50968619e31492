// What is done to a row at a time: the norm before a linear layer, and a token's heads on their way to attention.
#pragma once

#include "kernels/functions.h"
#include "kernels/kernels.h"

namespace postroad {
namespace {

// The sum of squares of x[0 … size - 1], in an order that depends on `size` alone.
inline float sum_of_squares(const float* x, int64_t size) {
    simd::Floats sums = simd::zero();
    int64_t i = 0;
    for (; i + simd::kWidth <= size; i += simd::kWidth) {
        const simd::Floats values = simd::load(x + i);
        sums = simd::fma(values, values, sums);
    }
    float total = simd::sum(sums);
    for (; i < size; ++i) total += x[i] * x[i];
    return total;
}

inline float inverse_rms(const float* x, int64_t size, float eps) {
    return 1.0f / __builtin_sqrtf(sum_of_squares(x, size) / static_cast<float>(size) + eps);
}

inline void store_element(float* p, float x) { *p = x; }
inline void store_element(uint16_t* p, float x) { *p = bf16_from_float(x); }

template <class Element>
inline void store_row(Element* output, const float* x, int64_t size) {
    int64_t i = 0;
    for (; i + simd::kWidth <= size; i += simd::kWidth) simd::store_elements(output + i, simd::load(x + i));
    for (; i < size; ++i) store_element(output + i, x[i]);
}

template <class Fmt>
void rms_norm(const RmsNormCall& call) {
    auto* output = static_cast<typename Fmt::Element*>(call.output);
    const float factor = inverse_rms(call.input, call.size, call.eps);
    const simd::Floats factors = simd::broadcast(factor);
    int64_t i = 0;
    for (; i + simd::kWidth <= call.size; i += simd::kWidth) {
        const simd::Floats normed = simd::mul(simd::load(call.input + i), factors);
        simd::store_elements(output + i, simd::mul(normed, simd::load(call.weight + i)));
    }
    for (; i < call.size; ++i) store_element(output + i, call.input[i] * factor * call.weight[i]);
}

inline void add_rms_norm(const RmsNormCall& call) {
    auto* output = static_cast<float*>(call.output);
    const float factor = inverse_rms(call.input, call.size, call.eps);
    const simd::Floats factors = simd::broadcast(factor);
    int64_t i = 0;
    for (; i + simd::kWidth <= call.size; i += simd::kWidth) {
        const simd::Floats normed = simd::mul(simd::load(call.input + i), factors);
        simd::store(output + i, simd::add(simd::load(output + i), simd::mul(normed, simd::load(call.weight + i))));
    }
    for (; i < call.size; ++i) output[i] += call.input[i] * factor * call.weight[i];
}

inline void soften(float* x, int64_t size, float cap) {
    const simd::Floats caps = simd::broadcast(cap), inverse = simd::broadcast(1.0f / cap);
    const auto softened = [&](simd::Floats values) { return simd::mul(tanh(simd::mul(values, inverse)), caps); };
    int64_t i = 0;
    for (; i + simd::kWidth <= size; i += simd::kWidth) simd::store(x + i, softened(simd::load(x + i)));
    for (; i < size; ++i) {
        float lanes[simd::kWidth];
        simd::store(lanes, softened(simd::broadcast(x[i])));
        x[i] = lanes[0];
    }
}

// Normalises a head if `weight` is given, rotates it (half-split layout), and leaves it, times `scale`, in `output`.
inline void turn_head(const HeadsCall& call, const float* head, const float* weight, float scale, float* output) {
    const int half = call.rotated_pairs;
    const float factor = weight ? inverse_rms(head, call.head_dim, call.norm_eps) : 1.0f;
    const simd::Floats factors = simd::broadcast(factor), scales = simd::broadcast(scale);
    const auto normed = [&](int i) {
        const simd::Floats x = simd::load(head + i);
        return weight ? simd::mul(simd::mul(x, factors), simd::load(weight + i)) : x;
    };
    const auto normed_one = [&](int i) { return weight ? head[i] * factor * weight[i] : head[i]; };
    int i = 0;
    for (; i + simd::kWidth <= half; i += simd::kWidth) {
        const simd::Floats a = normed(i), b = normed(i + half);
        const simd::Floats cosines = simd::load(call.cosines + i), sines = simd::load(call.sines + i);
        simd::store(output + i, simd::mul(simd::sub(simd::mul(a, cosines), simd::mul(b, sines)), scales));
        simd::store(output + i + half, simd::mul(simd::add(simd::mul(b, cosines), simd::mul(a, sines)), scales));
    }
    for (; i < half; ++i) {
        const float a = normed_one(i), b = normed_one(i + half);
        output[i] = (a * call.cosines[i] - b * call.sines[i]) * scale;
        output[i + half] = (b * call.cosines[i] + a * call.sines[i]) * scale;
    }
    for (i = 2 * half; i + simd::kWidth <= call.head_dim; i += simd::kWidth) {
        simd::store(output + i, simd::mul(normed(i), scales));
    }
    for (; i < call.head_dim; ++i) output[i] = normed_one(i) * scale;
}

template <class Fmt>
inline void store_key(const HeadsCall& call, int kv_head, const float* key) {
    using Element = typename Fmt::Element;
    uint32_t* block = call.keys + kv_head * call.head_words + call.slot;
    auto* elements = reinterpret_cast<Element*>(call.scratch + call.head_dim);
    store_row(elements, key, call.head_dim);
    const int words = call.head_dim / Fmt::kPerWord;
    for (int word = 0; word < words; ++word) {
        std::memcpy(block + word * kBlock, elements + word * Fmt::kPerWord, sizeof(uint32_t));
    }
    for (int i = words * Fmt::kPerWord; i < call.head_dim; ++i) {  // half a word of bf16
        reinterpret_cast<Element*>(block + words * kBlock)[0] = elements[i];
    }
}

// Attention multiplies values of slots not yet written by 0: what a former owner left there may not be finite.
template <class Fmt>
inline void clear_later_values(const HeadsCall& call, uint32_t* words, typename Fmt::Element* row) {
    for (int half = call.slot % Fmt::kPerWord + 1; half < Fmt::kPerWord; ++half) {
        for (int i = 0; i < call.head_dim; ++i) store_element(row + i * Fmt::kPerWord + 1, 0.0f);
    }
    const int64_t later_rows = kBlock / Fmt::kPerWord - 1 - call.slot / Fmt::kPerWord;
    std::memset(words + call.value_stride, 0, sizeof(uint32_t) * later_rows * call.value_stride);
}

template <class Fmt>
inline void store_value(const HeadsCall& call, int kv_head, const float* value) {
    using Element = typename Fmt::Element;
    uint32_t* words = call.values + kv_head * call.head_words + call.slot / Fmt::kPerWord * call.value_stride;
    auto* row = reinterpret_cast<Element*>(words) + call.slot % Fmt::kPerWord;
    auto* elements = reinterpret_cast<Element*>(call.scratch + call.head_dim);
    store_row(elements, value, call.head_dim);
    int i = 0;
    for (; i + simd::kWidth <= call.head_dim; i += simd::kWidth) simd::spread(row + i * Fmt::kPerWord, elements + i);
    for (; i < call.head_dim; ++i) row[i * Fmt::kPerWord] = elements[i];
    if (call.clears_rest) clear_later_values<Fmt>(call, words, row);
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

inline int8_t to_int8(float x, float inverse_scale) {
    return static_cast<int8_t>(__builtin_rintf(x * inverse_scale));
}

// A key or value in int8, element i at bytes[place(i)].
template <class Place>
inline void store_int8(const float* x, int size, int8_t* bytes, float& scale, const Place& place) {
    scale = int8_scale(x, size);
    const float inverse = scale > 0.0f && scale < 1e30f ? 1.0f / scale : 0.0f;
    for (int i = 0; i < size; ++i) bytes[place(i)] = inverse == 0.0f ? int8_t{0} : to_int8(x[i], inverse);
}

template <class Fmt>
inline void store_int8_key(const HeadsCall& call, int kv_head, const float* key) {
    auto* block = reinterpret_cast<int8_t*>(call.keys + kv_head * call.head_words) + call.slot * Fmt::kPerWord;
    store_int8(key, call.head_dim, block, call.scales[kv_head * call.head_words + call.slot],
               [](int i) { return i / Fmt::kPerWord * kBlock * Fmt::kPerWord + i % Fmt::kPerWord; });
}

// Later slots need no zeros: any int8 times a weight of 0 is 0, and weights are 0 whatever a slot's scale is.
template <class Fmt>
inline void store_int8_value(const HeadsCall& call, int kv_head, const float* value) {
    auto* row = reinterpret_cast<int8_t*>(call.values + kv_head * call.head_words) +
                call.slot / Fmt::kPerWord * call.value_stride * Fmt::kPerWord + call.slot % Fmt::kPerWord;
    store_int8(value, call.head_dim, row, call.scales[kv_head * call.head_words + kBlock + call.slot],
               [](int i) { return i * Fmt::kPerWord; });
}

template <class Fmt, KvFormat kKv>
void heads(const HeadsCall& call) {
    const float* head = call.projected;
    const int group = call.num_heads / call.num_kv_heads;
    for (int h = 0; h < call.num_heads; ++h, head += call.head_dim) {
        turn_head(call, head, call.q_norm, call.query_scale, call.scratch);
        auto* query = static_cast<typename Fmt::Element*>(call.queries) + h / group * call.group_stride +
                      h % group * call.query_stride;
        store_row(query, call.scratch, call.head_dim);
    }
    for (int h = 0; h < call.num_kv_heads; ++h, head += call.head_dim) {
        turn_head(call, head, call.k_norm, 1.0f, call.scratch);
        if constexpr (kKv == KvFormat::kInt8) {
            store_int8_key<Fmt>(call, h, call.scratch);
        } else {
            store_key<Fmt>(call, h, call.scratch);
        }
    }
    for (int h = 0; h < call.num_kv_heads; ++h, head += call.head_dim) {
        if constexpr (kKv == KvFormat::kInt8) {
            store_int8_value<Fmt>(call, h, head);
        } else {
            store_value<Fmt>(call, h, head);
        }
    }
}

}  // namespace
}  // namespace postroad
