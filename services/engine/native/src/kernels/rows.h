// What is done to a row at a time: the norm before a linear layer, and the caps of logits.
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

}  // namespace
}  // namespace postroad
