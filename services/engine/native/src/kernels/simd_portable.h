// Vectors of 4 numbers in the compiler's own vector types (GCC and Clang), for any processor.
#pragma once

#include <cmath>

#include "elements.h"

namespace postroad {
namespace {
namespace simd {

typedef float Floats __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(16)));
typedef uint16_t Shorts __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
constexpr int kWidth = 4;
constexpr int kTileRows = 4;
constexpr int kTileVectors = 2;
constexpr int kIntegerTileRows = 2;

inline Floats as_floats(Words x) { return reinterpret_cast<Floats>(x); }
inline Words as_words(Floats x) { return reinterpret_cast<Words>(x); }
inline Floats choose(Integers first, Floats a, Floats b) {
    return as_floats((reinterpret_cast<Words>(first) & as_words(a)) | (~reinterpret_cast<Words>(first) & as_words(b)));
}

inline Floats broadcast(float x) { return Floats{x, x, x, x}; }
inline Floats zero() { return broadcast(0.0f); }

inline Floats load(const float* p) {
    Floats x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }
inline Floats add(Floats a, Floats b) { return a + b; }
inline Floats sub(Floats a, Floats b) { return a - b; }
inline Floats mul(Floats a, Floats b) { return a * b; }
inline Floats div(Floats a, Floats b) { return a / b; }
inline Floats max(Floats a, Floats b) { return choose(a > b, a, b); }
inline Floats min(Floats a, Floats b) { return choose(a < b, a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
inline float sum(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float largest(Floats x) {
    const float even = x[0] > x[2] ? x[0] : x[2];
    const float odd = x[1] > x[3] ? x[1] : x[3];
    return even > odd ? even : odd;
}

// x with lanes from `count` on replaced by `other`.
inline Floats keep_first(Floats x, int count, Floats other) {
    const Integers lanes{0, 1, 2, 3};
    return choose(lanes < Integers{count, count, count, count}, x, other);
}

// For numbers below 2^22 in magnitude: the sum with 1.5 * 2^23 has no fraction bits.
inline Floats round_nearest(Floats x) {
    const Floats magic = broadcast(12582912.0f);
    return (x + magic) - magic;
}

// x less the integer that is nearest to it.
inline Floats fraction(Floats x) { return sub(x, round_nearest(x)); }

// x * 2^n, for n from -126 to 127.
inline Floats scale_by_power(Floats x, Floats n) {
    const Integers exponent = (__builtin_convertvector(n, Integers) + 127) << 23;
    return x * reinterpret_cast<Floats>(exponent);
}

inline Floats load_int8(const int8_t* p) { return Floats{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }

inline Words load_words(const uint32_t* p) {
    Words x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

inline Words broadcast_word(const uint32_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return Words{word, word, word, word};
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }

inline Floats dot(F32, Floats sum, Words a, Words b) { return fma(as_floats(a), as_floats(b), sum); }

inline Floats dot(Bf16, Floats sum, Words a, Words b) {
    const Floats odd = fma(as_floats(a & 0xffff0000u), as_floats(b & 0xffff0000u), sum);
    return fma(as_floats(a << 16), as_floats(b << 16), odd);
}

inline Words zero_words() { return Words{}; }
inline Words low_nibbles(Words x) { return x & 0x0f0f0f0fu; }
inline Words high_nibbles(Words x) { return low_nibbles(x >> 4); }
inline Words to_unsigned(Words x) { return x ^ 0x80808080u; }  // bytes + 128
inline Floats from_integers(Words x) { return __builtin_convertvector(reinterpret_cast<Integers>(x), Floats); }
inline Words magnitude(Floats x) { return as_words(x) & 0x7fffffffu; }
inline Words max_integers(Words a, Words b) {
    const Words first = reinterpret_cast<Words>(a > b);
    return (first & a) | (~first & b);
}
inline uint32_t largest_integer(Words x) {
    const uint32_t even = x[0] > x[2] ? x[0] : x[2];
    const uint32_t odd = x[1] > x[3] ? x[1] : x[3];
    return even > odd ? even : odd;
}
inline bool any_above(Words x, int bound) { return largest_integer(x) > static_cast<uint32_t>(bound); }
inline Floats load_halves(const uint16_t* p) {
    return Floats{float_from_half(p[0]), float_from_half(p[1]), float_from_half(p[2]), float_from_half(p[3])};
}

inline Words load_shorts(const uint16_t* p) { return Words{p[0], p[1], p[2], p[3]}; }
// A byte of each lane to the lower half of both its shorts, or to all its bytes.
inline Words first_byte_to_shorts(Words x) { return (x & 0xffu) * 0x00010001u; }
inline Words second_byte_to_bytes(Words x) { return (x >> 8 & 0xffu) * 0x01010101u; }
inline Words multiply_shorts(Words a, Words b) {
    return reinterpret_cast<Words>(reinterpret_cast<Shorts>(a) * reinterpret_cast<Shorts>(b));
}
inline Words add_bytes(Words a, Words b) {
    return reinterpret_cast<Words>(reinterpret_cast<Bytes>(a) + reinterpret_cast<Bytes>(b));
}

// Numbers from -127 to 127 without a fraction; NaN becomes 0.
inline void store_bytes(int8_t* p, Floats x) {
    for (int lane = 0; lane < kWidth; ++lane) p[lane] = x[lane] == x[lane] ? static_cast<int8_t>(x[lane]) : int8_t{0};
}

// sum + the products of four unsigned and four signed bytes, per lane.
inline Words dot_bytes(Words sum, Words unsigned_bytes, Words signed_bytes) {
    for (int shift = 0; shift < 32; shift += 8) {
        const Words code = unsigned_bytes >> shift & 0xffu;
        const Integers byte = reinterpret_cast<Integers>(signed_bytes << (24 - shift)) >> 24;
        sum += code * reinterpret_cast<Words>(byte);
    }
    return sum;
}

inline Words dot_nibbles(Words sum, Words nibbles, Words signed_bytes) { return dot_bytes(sum, nibbles, signed_bytes); }

inline Floats load_elements(const float* p) { return load(p); }
inline Floats load_elements(const uint16_t* p) {
    return Floats{float_from_bf16(p[0]), float_from_bf16(p[1]), float_from_bf16(p[2]), float_from_bf16(p[3])};
}

inline void store_elements(float* p, Floats x) { store(p, x); }
inline void store_elements(uint16_t* p, Floats x) {
    for (int lane = 0; lane < kWidth; ++lane) p[lane] = bf16_from_float(x[lane]);
}

// Puts elements one per word: of bf16 only every second place is written.
inline void spread(float* p, const float* elements) { store(p, load(elements)); }
inline void spread(uint16_t* p, const uint16_t* elements) {
    for (int i = 0; i < kWidth; ++i) p[2 * i] = elements[i];
}

// Two bf16 per word: of `even`, and of `odd` in the higher half.
inline void store_pairs(uint16_t* p, Floats even, Floats odd) {
    uint16_t first[kWidth], second[kWidth];
    store_elements(first, even);
    store_elements(second, odd);
    for (int i = 0; i < kWidth; ++i) {
        p[2 * i] = first[i];
        p[2 * i + 1] = second[i];
    }
}

// 16 rows of 16 words become columns, [16][16].
inline void transpose(const uint32_t* rows, int64_t stride, uint32_t* columns) {
    for (int column = 0; column < 16; ++column) {
        for (int row = 0; row < 16; ++row) columns[column * 16 + row] = rows[row * stride + column];
    }
}

}  // namespace simd
}  // namespace
}  // namespace postroad
