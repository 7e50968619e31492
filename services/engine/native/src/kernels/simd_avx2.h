// Vectors of 8 numbers, AVX2 with FMA. bf16 pairs are widened and multiplied one after the other.
#pragma once

#include <immintrin.h>

#include "elements.h"

namespace postroad {
namespace {
namespace simd {

using Floats = __m256;
using Words = __m256i;
constexpr int kWidth = 8;
constexpr int kTileRows = 4;
constexpr int kTileVectors = 2;
constexpr int kIntegerTileRows = 2;

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats broadcast(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

inline float sum(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float largest(Floats x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// x with lanes from `count` on replaced by `other`.
inline Floats keep_first(Floats x, int count, Floats other) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(kept));
}

inline Floats round_nearest(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// x less the integer that is nearest to it.
inline Floats fraction(Floats x) { return sub(x, round_nearest(x)); }

// x * 2^n, for n from -126 to 127.
inline Floats scale_by_power(Floats x, Floats n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return mul(x, _mm256_castsi256_ps(exponent));
}

inline Floats load_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline Words load_words(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Words broadcast_word(const uint32_t* p) {
    int word;
    std::memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline Floats high_half(Words x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000u))));
}
inline Floats low_half(Words x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }

inline Floats dot(F32, Floats sum, Words a, Words b) {
    return fma(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), sum);
}
inline Floats dot(Bf16, Floats sum, Words a, Words b) {
    return fma(low_half(a), low_half(b), fma(high_half(a), high_half(b), sum));
}

inline Words zero_words() { return _mm256_setzero_si256(); }
inline Words low_nibbles(Words x) { return _mm256_and_si256(x, _mm256_set1_epi32(0x0f0f0f0f)); }
inline Words high_nibbles(Words x) { return low_nibbles(_mm256_srli_epi32(x, 4)); }
inline Words to_unsigned(Words x) { return _mm256_xor_si256(x, _mm256_set1_epi32(int(0x80808080u))); }  // bytes + 128
inline Floats from_integers(Words x) { return _mm256_cvtepi32_ps(x); }
inline Floats as_floats(Words x) { return _mm256_castsi256_ps(x); }
inline Words magnitude(Floats x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
inline Words max_integers(Words a, Words b) { return _mm256_max_epi32(a, b); }
inline bool any_above(Words x, int bound) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(x, _mm256_set1_epi32(bound))) != 0;
}
inline uint32_t largest_integer(Words x) {
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}
inline Floats load_halves(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline Words load_shorts(const uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// A byte of each lane to the lower half of both its shorts, or to all its bytes.
inline Words first_byte_to_shorts(Words x) {
    const __m128i order = _mm_setr_epi32(int(0x80008000u), int(0x80048004u), int(0x80088008u), int(0x800c800cu));
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}
inline Words second_byte_to_bytes(Words x) {
    const __m128i order = _mm_setr_epi32(0x01010101, 0x05050505, 0x09090909, 0x0d0d0d0d);
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}
inline Words multiply_shorts(Words a, Words b) { return _mm256_mullo_epi16(a, b); }
inline Words add_bytes(Words a, Words b) { return _mm256_add_epi8(a, b); }

// Numbers from -127 to 127 without a fraction.
inline void store_bytes(int8_t* p, Floats x) {
    const __m256i integers = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

// sum + the products of four unsigned and four signed bytes, per lane. Even and odd bytes apart, as 16-bit numbers: a
// pair of products would not fit into 16 bits.
inline Words dot_bytes(Words sum, Words unsigned_bytes, Words signed_bytes) {
    const Words even = _mm256_madd_epi16(_mm256_and_si256(unsigned_bytes, _mm256_set1_epi16(0xff)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(signed_bytes, 8), 8));
    const Words odd = _mm256_madd_epi16(_mm256_srli_epi16(unsigned_bytes, 8), _mm256_srai_epi16(signed_bytes, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

// Of bytes below 16 pairs of products fit.
inline Words dot_nibbles(Words sum, Words nibbles, Words signed_bytes) {
    const Words pairs = _mm256_maddubs_epi16(nibbles, signed_bytes);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

inline Floats load_elements(const float* p) { return load(p); }
inline Floats load_elements(const uint16_t* p) {
    const Words words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

inline void store_elements(float* p, Floats x) { store(p, x); }

inline void store_elements(uint16_t* p, Floats x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_packus_epi32(high, high);
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ordered));
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
