// Vectors of 16 numbers, AVX-512. bf16 pairs are multiplied by vdpbf16ps, bytes by vpdpbusd, where the translation unit
// may use them.
#pragma once

#include <immintrin.h>

#include "elements.h"

namespace postroad {
namespace {
namespace simd {

using Floats = __m512;
using Words = __m512i;
constexpr int kWidth = 16;
constexpr int kTileRows = 12;  // 12 x 2 accumulators, 2 vectors of weights, and room for a broadcast
constexpr int kTileVectors = 2;
constexpr int kIntegerTileRows = 6;  // 6 x 2 sums and as many of integers

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
// For b >= 1, off by two units in the last place at most: an exact division takes as long as all else in a silu.
inline Floats div(Floats a, Floats b) {
    const Floats inverse = _mm512_rcp14_ps(b);
    return mul(a, fma(inverse, _mm512_fnmadd_ps(b, inverse, broadcast(1.0f)), inverse));
}
inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }

// x with lanes from `count` on replaced by `other`.
inline Floats keep_first(Floats x, int count, Floats other) {
    const __mmask16 kept = static_cast<__mmask16>(count >= kWidth ? 0xffffu : (1u << count) - 1u);
    return _mm512_mask_blend_ps(kept, other, x);
}

inline Floats round_nearest(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x less the integer that is nearest to it: an instruction less than by that integer.
inline Floats fraction(Floats x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats scale_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }  // x * 2^n

inline Floats load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

inline Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
inline Words broadcast_word(const uint32_t* p) {
    int word;
    std::memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline Floats dot(F32, Floats sum, Words a, Words b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

#if defined(__AVX512BF16__)

inline Floats dot(Bf16, Floats sum, Words a, Words b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline __m256i to_bf16(Floats x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

#else

inline Floats high_half(Words x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000u))));
}
inline Floats low_half(Words x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }

inline Floats dot(Bf16, Floats sum, Words a, Words b) {
    return fma(low_half(a), low_half(b), fma(high_half(a), high_half(b), sum));
}

inline __m256i to_bf16(Floats x) {
    const Words bits = _mm512_castps_si512(x);
    const Words odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Words rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const Words safe = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}

#endif

inline Words zero_words() { return _mm512_setzero_si512(); }
inline Words low_nibbles(Words x) { return _mm512_and_si512(x, _mm512_set1_epi32(0x0f0f0f0f)); }
inline Words high_nibbles(Words x) { return low_nibbles(_mm512_srli_epi32(x, 4)); }
inline Words to_unsigned(Words x) { return _mm512_xor_si512(x, _mm512_set1_epi32(int(0x80808080u))); }  // bytes + 128
inline Floats from_integers(Words x) { return _mm512_cvtepi32_ps(x); }
inline Floats as_floats(Words x) { return _mm512_castsi512_ps(x); }
inline Words magnitude(Floats x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
inline Words max_integers(Words a, Words b) { return _mm512_max_epi32(a, b); }
inline bool any_above(Words x, int bound) { return _mm512_cmpgt_epi32_mask(x, _mm512_set1_epi32(bound)) != 0; }
inline uint32_t largest_integer(Words x) { return static_cast<uint32_t>(_mm512_reduce_max_epi32(x)); }
inline Floats load_halves(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline Words load_shorts(const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// A byte of each lane to the lower half of both its shorts, or to all its bytes.
inline Words first_byte_to_shorts(Words x) {
    return _mm512_shuffle_epi8(x, _mm512_set4_epi32(int(0x800c800cu), int(0x80088008u), int(0x80048004u), int(0x80008000u)));
}
inline Words second_byte_to_bytes(Words x) {
    return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0d0d0d0d, 0x09090909, 0x05050505, 0x01010101));
}
inline Words multiply_shorts(Words a, Words b) { return _mm512_mullo_epi16(a, b); }
inline Words add_bytes(Words a, Words b) { return _mm512_add_epi8(a, b); }

// Numbers from -127 to 127 without a fraction.
inline void store_bytes(int8_t* p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}

// sum + the products of four unsigned and four signed bytes, per lane.
#if defined(__AVX512VNNI__)

// By hand: for the intrinsic g++ 12 copies a register per product.
inline Words dot_bytes(Words sum, Words unsigned_bytes, Words signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
    return sum;
}

inline Words dot_nibbles(Words sum, Words nibbles, Words signed_bytes) { return dot_bytes(sum, nibbles, signed_bytes); }

#else

// Even and odd bytes apart, as 16-bit numbers: a pair of products would not fit into 16 bits.
inline Words dot_bytes(Words sum, Words unsigned_bytes, Words signed_bytes) {
    const Words even = _mm512_madd_epi16(_mm512_and_si512(unsigned_bytes, _mm512_set1_epi16(0xff)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(signed_bytes, 8), 8));
    const Words odd = _mm512_madd_epi16(_mm512_srli_epi16(unsigned_bytes, 8), _mm512_srai_epi16(signed_bytes, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
}

// Of bytes below 16 pairs of products fit.
inline Words dot_nibbles(Words sum, Words nibbles, Words signed_bytes) {
    const Words pairs = _mm512_maddubs_epi16(nibbles, signed_bytes);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

#endif

inline Floats load_elements(const float* p) { return load(p); }
inline Floats load_elements(const uint16_t* p) {
    const Words words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

inline void store_elements(float* p, Floats x) { store(p, x); }
inline void store_elements(uint16_t* p, Floats x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }

// Puts elements one per word: of bf16 only every second place is written.
inline void spread(float* p, const float* elements) { store(p, load(elements)); }
inline void spread(uint16_t* p, const uint16_t* elements) {
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements));
    _mm512_mask_storeu_epi16(p, 0x55555555u, _mm512_cvtepu16_epi32(packed));
}

// Two bf16 per word: of `even`, and of `odd` in the higher half.
inline void store_pairs(uint16_t* p, Floats even, Floats odd) {
    const Words high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(odd)), 16);
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_cvtepu16_epi32(to_bf16(even)), high));
}

// 16 rows of 16 words become columns, [16][16].
inline void transpose(const uint32_t* rows, int64_t stride, uint32_t* columns) {
    Words x[16], y[16];
    for (int i = 0; i < 16; ++i) x[i] = load_words(rows + i * stride);
    for (int i = 0; i < 16; i += 2) {  // within quarters of 128 bits: words of two rows, then of four
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int half = 0; half < 2; ++half) {
            x[i + 2 * half] = _mm512_unpacklo_epi64(y[i + half], y[i + half + 2]);
            x[i + 2 * half + 1] = _mm512_unpackhi_epi64(y[i + half], y[i + half + 2]);
        }
    }
    // x[4 * j + c]: in quarter q column 4 * q + c of rows 4 * j to 4 * j + 3.
    for (int c = 0; c < 4; ++c) {
        const Words even_first = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
        const Words odd_first = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
        const Words even_last = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
        const Words odd_last = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
        const auto store_column = [&](int column, Words x) { _mm512_storeu_si512(columns + column * 16, x); };
        store_column(c, _mm512_shuffle_i32x4(even_first, even_last, 0x88));
        store_column(4 + c, _mm512_shuffle_i32x4(odd_first, odd_last, 0x88));
        store_column(8 + c, _mm512_shuffle_i32x4(even_first, even_last, 0xdd));
        store_column(12 + c, _mm512_shuffle_i32x4(odd_first, odd_last, 0xdd));
    }
}

}  // namespace simd
}  // namespace
}  // namespace postroad
