// Elementary functions over vectors, accurate to a few units in the last place.
#pragma once

#include "kernels/kernels.h"

namespace postroad {
namespace {

// 2^x for x of -126 to 127, by a polynomial that is 2^f for |f| <= 1/2. Its coefficients, the highest power's first.
template <typename... Coefficients>
inline simd::Floats power_of_two_by(simd::Floats x, float first, Coefficients... others) {
    const simd::Floats f = simd::fraction(x);
    simd::Floats p = simd::broadcast(first);
    ((p = simd::fma(p, f, simd::broadcast(others))), ...);
    return simd::scale_by_power(p, simd::sub(x, f));
}

// 2^x. Below -126 it is 2^-126 at least, never a subnormal; exactly 1 at 0.
inline simd::Floats exp2(simd::Floats x) {
    x = simd::min(simd::max(x, simd::broadcast(-126.0f)), simd::broadcast(127.0f));
    // Taylor's.
    return power_of_two_by(x, 1.540353039e-4f, 1.333355815e-3f, 9.618129108e-3f, 5.550410866e-2f, 2.402265070e-1f,
                           6.931471806e-1f, 1.0f);
}

// 2^x for x <= 0, off by 2^-18 of itself: enough for what becomes bf16. Below -126 as exp2.
inline simd::Floats rough_exp2(simd::Floats x) {
    x = simd::max(x, simd::broadcast(-126.0f));
    // Of least relative error among those that are 1 at 0.
    return power_of_two_by(x, 9.58285e-3f, 5.590643e-2f, 2.4024099e-1f, 6.9312419e-1f, 1.0f);
}

inline float exp2(float x) {
    float lanes[simd::kWidth];
    simd::store(lanes, exp2(simd::broadcast(x)));
    return lanes[0];
}

// Off by 2^-23 at most; so near 0 not in relation to itself.
inline simd::Floats tanh(simd::Floats x) {
    const simd::Floats one = simd::broadcast(1.0f);
    const simd::Floats exponential = exp2(simd::mul(x, simd::broadcast(2.0f * kLog2E)));
    return simd::sub(one, simd::div(simd::broadcast(2.0f), simd::add(one, exponential)));
}

// x / (1 + e^-x)
inline simd::Floats silu(simd::Floats x) {
    const simd::Floats exponential = exp2(simd::mul(x, simd::broadcast(-kLog2E)));
    return simd::div(x, simd::add(simd::broadcast(1.0f), exponential));
}

// The tanh approximation of x * Phi(x): x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline simd::Floats gelu_tanh(simd::Floats x) {
    const simd::Floats cubic = simd::fma(simd::mul(x, x), simd::broadcast(0.044715f), simd::broadcast(1.0f));
    const simd::Floats u = simd::mul(simd::mul(x, cubic), simd::broadcast(-2.0f * 0.79788456080286535588f * kLog2E));
    return simd::div(x, simd::add(simd::broadcast(1.0f), exp2(u)));
}

}  // namespace
}  // namespace postroad
