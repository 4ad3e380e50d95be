// Eight floats in a register: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

struct Half { uint16_t bits; };
struct BFloat { uint16_t bits; };
struct Int8 { int8_t value; };
struct Float8 { uint8_t bits; };  // E4M3 without infinities

struct Vector {
    static constexpr int kLanes = 8;
    static constexpr int kColumns = 2;  // vectors of one value that stay in registers for up to four heads
    __m256 v;

    static inline Vector zero() { return {_mm256_setzero_ps()}; }
    static inline Vector all(float x) { return {_mm256_set1_ps(x)}; }
    static inline Vector load(const float *p) { return {_mm256_loadu_ps(p)}; }
    static inline Vector load(const Half *p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)))};
    }
    static inline Vector load(const BFloat *p) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
    }
    static inline Vector load(const Int8 *p) {
        const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))};
    }
    // A 256th of it: the bits of a half with the exponent as it is.
    static inline Vector load(const Float8 *p) {
        const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
        const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
        const __m128i rest = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7);
        return {_mm256_cvtph_ps(_mm_or_si128(sign, rest))};
    }
    inline void store(float *p) const { _mm256_storeu_ps(p, v); }
    inline void store(Half *p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    inline void store(BFloat *p) const {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_srli_epi32(
            _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        const __m256i kept = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0xd8);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_castsi256_si128(packed));
    }
    inline Vector operator+(Vector o) const { return {_mm256_add_ps(v, o.v)}; }
    inline Vector operator-(Vector o) const { return {_mm256_sub_ps(v, o.v)}; }
    inline Vector operator*(Vector o) const { return {_mm256_mul_ps(v, o.v)}; }
    inline Vector operator/(Vector o) const { return {_mm256_div_ps(v, o.v)}; }
    inline Vector magnitude() const { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v)}; }
    // Where x is negative, `other`.
    inline Vector or_where_negative(Vector x, Vector other) const {
        return {_mm256_blendv_ps(v, other.v, _mm256_cmp_ps(x.v, _mm256_setzero_ps(), _CMP_LT_OQ))};
    }
    inline Vector plus_product(Vector a, Vector b) const { return {_mm256_fmadd_ps(a.v, b.v, v)}; }
    inline Vector larger(Vector o) const { return {_mm256_max_ps(v, o.v)}; }
    // The first `count` lanes, then `rest`.
    inline Vector first(int count, float rest) const {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256 kept = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
        return {_mm256_blendv_ps(_mm256_set1_ps(rest), v, kept)};
    }
    // A bit for each lane.
    inline unsigned lanes_at_least(float bound) const {
        return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(bound), _CMP_GE_OQ)));
    }
    // Where x < bound, 0.
    inline Vector zero_where_less(Vector x, float bound) const {
        return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(bound), _CMP_LT_OQ), v)};
    }
    inline Vector rounded() const { return {_mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
    // v * 2^n for whole n of -126 to 127.
    inline Vector scaled(Vector n) const {
        const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
        return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), exponent))};
    }
    // Lane i: the sum over lanes of part i.
    static inline Vector sums(const Vector *parts) {
        __m256 half[4], quarter[2];
        for (int i = 0; i < 4; i++) {
            const __m256 a = parts[2 * i].v, b = parts[2 * i + 1].v;
            half[i] = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        }
        for (int i = 0; i < 2; i++) {
            const __m256 a = half[2 * i], b = half[2 * i + 1];
            quarter[i] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
        }
        return {_mm256_add_ps(_mm256_permute2f128_ps(quarter[0], quarter[1], 0x20),
                              _mm256_permute2f128_ps(quarter[0], quarter[1], 0x31))};
    }
};

}  // namespace
