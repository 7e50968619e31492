// Compiled without contraction of products and sums, so that every instruction set rounds alike.
#include "row_kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "isa.h"

#define POSTROAD_INLINE inline __attribute__((always_inline))

namespace postroad {
namespace {

// The compiler's vector types. 256 bits: g++ 12 compares wider ones element by element.
constexpr std::size_t kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
using Words = std::int64_t __attribute__((vector_size(kLanes / 2 * sizeof(std::int64_t))));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

POSTROAD_INLINE Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

POSTROAD_INLINE Floats all(float value) { return Floats{} + value; }

POSTROAD_INLINE void store(float* to, const Floats& x) { std::memcpy(to, &x, sizeof(x)); }

POSTROAD_INLINE bool any(const Ints& mask) {
    Words words;
    std::memcpy(&words, &mask, sizeof(words));
    return ((words[0] | words[1]) | (words[2] | words[3])) != 0;
}

// Most words are all zeros or all ones.
POSTROAD_INLINE void keep_in_row(const float* logits, std::size_t n, const std::uint32_t* words, float* kept) {
    constexpr std::size_t kIdsPerWord = 32;
    constexpr Ints kBits = {1, 2, 4, 8, 16, 32, 64, 128};
    std::size_t i = 0;
    for (; i + kIdsPerWord <= n; i += kIdsPerWord) {
        const std::uint32_t word = words[i / kIdsPerWord];
        if (word == 0) {
            std::fill(kept + i, kept + i + kIdsPerWord, -kInfinity);
            continue;
        }
        if (word == ~std::uint32_t{0}) {
            if (kept != logits) std::memcpy(kept + i, logits + i, kIdsPerWord * sizeof(float));
            continue;
        }
        for (std::size_t lane = 0; lane < kIdsPerWord; lane += kLanes) {
            const Ints bits = Ints{} + static_cast<std::int32_t>(word >> lane & 0xFF);
            store(kept + i + lane, (bits & kBits) != 0 ? load(logits + i + lane) : all(-kInfinity));
        }
    }
    for (; i < n; ++i) kept[i] = words[i / kIdsPerWord] >> i % kIdsPerWord & 1 ? logits[i] : -kInfinity;
}

POSTROAD_INLINE float highest_of_row(const float* logits, std::size_t n) {
    constexpr std::size_t kParts = 4;  // chains that do not wait for each other
    Floats best[kParts];
    for (Floats& part : best) part = all(-kInfinity);
    Ints is_nan = {};
    std::size_t i = 0;
    for (; i + kParts * kLanes <= n; i += kParts * kLanes) {
        for (std::size_t part = 0; part < kParts; ++part) {
            const Floats x = load(logits + i + part * kLanes);
            best[part] = x > best[part] ? x : best[part];
            is_nan |= x != x;
        }
    }
    float highest = -kInfinity;
    for (const Floats& part : best) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) highest = std::max(highest, part[lane]);
    }
    bool found_nan = any(is_nan);
    for (; i < n; ++i) {
        highest = std::max(highest, logits[i]);
        found_nan |= logits[i] != logits[i];
    }
    return found_nan ? std::numeric_limits<float>::quiet_NaN() : highest;
}

POSTROAD_INLINE std::size_t find_in_row(const float* logits, std::size_t n, float value) {
    constexpr std::size_t kParts = 8;
    std::size_t i = 0;
    for (; i + kParts * kLanes <= n; i += kParts * kLanes) {
        Ints equal = {};
        for (std::size_t part = 0; part < kParts; ++part) equal |= load(logits + i + part * kLanes) == all(value);
        if (any(equal)) break;
    }
    while (i < n && logits[i] != value) ++i;
    return i;
}

POSTROAD_INLINE std::size_t between_in_row(const float* weights, std::size_t n, float low, float high,
                                           std::int32_t* ids) {
    constexpr std::size_t kParts = 4;
    std::size_t count = 0;
    const auto take = [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
            ids[count] = static_cast<std::int32_t>(i);
            count += weights[i] >= low && weights[i] < high;
        }
    };
    std::size_t i = 0;
    for (; i + kParts * kLanes <= n; i += kParts * kLanes) {
        Ints inside = {};
        for (std::size_t part = 0; part < kParts; ++part) {
            const Floats w = load(weights + i + part * kLanes);
            inside |= (w >= all(low)) & (w < all(high));
        }
        if (any(inside)) take(i, i + kParts * kLanes);
    }
    take(i, n);
    return count;
}

// exp for x <= 0, 0 below the smallest normal float. Cephes' expf: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2].
POSTROAD_INLINE float exponential(float x) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: added, it leaves the nearest integer in the low bits
    const float bounded = x < -87.0f ? 0.0f : x;
    const float shifted = bounded * 1.44269504088896341f + kMagic;
    const float n = shifted - kMagic;
    const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float value = (p * (r * r) + r) + 1.0f;
    std::int32_t bits, power;
    std::memcpy(&bits, &value, sizeof(bits));
    std::memcpy(&power, &shifted, sizeof(power));
    bits += static_cast<std::int32_t>(static_cast<std::uint32_t>(power) << 23);
    std::memcpy(&value, &bits, sizeof(value));
    return x < -87.0f ? 0.0f : value;
}

// Eight running sums, which a vector register or two hold.
POSTROAD_INLINE double sum_of_block(const float* weights, std::size_t n) {
    double sums[kLanes] = {};
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[i + lane];
    }
    for (std::size_t lane = 0; i + lane < n; ++lane) sums[lane] += weights[i + lane];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

POSTROAD_INLINE void weigh_row(const float* __restrict logits, std::size_t n, float highest, float temperature,
                               float lowest, float* __restrict weights, double* block_sums) {
    for (std::size_t start = 0; start < n; start += kSumBlock) {
        const std::size_t end = std::min(start + kSumBlock, n);
        for (std::size_t i = start; i < end; ++i) {
            const float scaled = (logits[i] - highest) / temperature;
            const float weight = exponential(scaled);
            weights[i] = scaled < lowest ? 0.0f : weight;
        }
        *block_sums++ = sum_of_block(weights + start, end - start);
    }
}

// One copy of the loops per instruction set. TARGET is empty or an attribute.
#define POSTROAD_ROW_KERNELS(NAME, TARGET)                                                                       \
    TARGET void keep_##NAME(const float* logits, std::size_t n, const std::uint32_t* words, float* kept) {       \
        keep_in_row(logits, n, words, kept);                                                                     \
    }                                                                                                            \
    TARGET float highest_##NAME(const float* logits, std::size_t n) { return highest_of_row(logits, n); }        \
    TARGET std::size_t find_##NAME(const float* logits, std::size_t n, float value) {                            \
        return find_in_row(logits, n, value);                                                                    \
    }                                                                                                            \
    TARGET void weigh_##NAME(const float* logits, std::size_t n, float highest, float temperature, float lowest, \
                             float* weights, double* block_sums) {                                               \
        weigh_row(logits, n, highest, temperature, lowest, weights, block_sums);                                 \
    }                                                                                                            \
    TARGET std::size_t between_##NAME(const float* weights, std::size_t n, float low, float high,                \
                                      std::int32_t* ids) {                                                       \
        return between_in_row(weights, n, low, high, ids);                                                       \
    }                                                                                                            \
    constexpr RowKernels kernels_##NAME = {keep_##NAME, highest_##NAME, find_##NAME, weigh_##NAME, between_##NAME};

POSTROAD_ROW_KERNELS(portable, )
#if defined(__x86_64__)
POSTROAD_ROW_KERNELS(avx2, __attribute__((target("avx2"))))
POSTROAD_ROW_KERNELS(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))))
#endif

}  // namespace

const RowKernels& row_kernels(const std::string& isa) {
    const std::vector<std::string>& supported = supported_isas();
    const std::string& name = isa == "auto" ? supported.front() : isa;
    if (std::find(supported.begin(), supported.end(), name) == supported.end()) {
        throw std::invalid_argument("isa '" + isa + "' is not supported here");
    }
#if defined(__x86_64__)
    if (name == "avx2") return kernels_avx2;
    if (name != "portable") return kernels_avx512;
#endif
    return kernels_portable;
}

}  // namespace postroad
