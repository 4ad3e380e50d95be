// Sixteen floats in a register: AVX512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

struct Half { uint16_t bits; };
struct BFloat { uint16_t bits; };
struct Int8 { int8_t value; };
struct Float8 { uint8_t bits; };  // E4M3 without infinities

struct Vector {
    static constexpr int kLanes = 16;
    static constexpr int kColumns = 4;  // vectors of one value that stay in registers for up to four heads
    __m512 v;

    static inline Vector zero() { return {_mm512_setzero_ps()}; }
    static inline Vector all(float x) { return {_mm512_set1_ps(x)}; }
    static inline Vector load(const float *p) { return {_mm512_loadu_ps(p)}; }
    static inline Vector load(const Half *p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
    }
    static inline Vector load(const BFloat *p) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
    }
    static inline Vector load(const Int8 *p) {
        const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen))};
    }
    // A 256th of it: the bits of a half with the exponent as it is.
    static inline Vector load(const Float8 *p) {
        const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
        const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
        const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
        return {_mm512_cvtph_ps(_mm256_or_si256(sign, rest))};
    }
    inline void store(float *p) const { _mm512_storeu_ps(p, v); }
    inline void store(Half *p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    inline void store(BFloat *p) const {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_srli_epi32(
            _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        const __m512i kept = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc0));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16(kept));
    }
    inline Vector operator+(Vector o) const { return {_mm512_add_ps(v, o.v)}; }
    inline Vector operator-(Vector o) const { return {_mm512_sub_ps(v, o.v)}; }
    inline Vector operator*(Vector o) const { return {_mm512_mul_ps(v, o.v)}; }
    inline Vector operator/(Vector o) const { return {_mm512_div_ps(v, o.v)}; }
    inline Vector magnitude() const { return {_mm512_abs_ps(v)}; }
    // Where x is negative, `other`.
    inline Vector or_where_negative(Vector x, Vector other) const {
        return {_mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_LT_OQ), other.v)};
    }
    inline Vector plus_product(Vector a, Vector b) const { return {_mm512_fmadd_ps(a.v, b.v, v)}; }
    inline Vector larger(Vector o) const { return {_mm512_max_ps(v, o.v)}; }
    // The first `count` lanes, then `rest`.
    inline Vector first(int count, float rest) const {
        return {_mm512_mask_mov_ps(_mm512_set1_ps(rest), static_cast<__mmask16>((1u << count) - 1), v)};
    }
    // A bit for each lane.
    inline unsigned lanes_at_least(float bound) const {
        return _mm512_cmp_ps_mask(v, _mm512_set1_ps(bound), _CMP_GE_OQ);
    }
    // Where x < bound, 0.
    inline Vector zero_where_less(Vector x, float bound) const {
        return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(bound), _CMP_NLT_UQ), v)};
    }
    inline Vector rounded() const {
        return {_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    }
    // v * 2^n for whole n of -126 to 127.
    inline Vector scaled(Vector n) const { return {_mm512_scalef_ps(v, n.v)}; }
    // Lane i: the sum over lanes of part i.
    static inline Vector sums(const Vector *parts) {
        __m512 half[8], quarter[4];
        for (int i = 0; i < 8; i++) {
            const __m512 a = parts[2 * i].v, b = parts[2 * i + 1].v;
            half[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        for (int i = 0; i < 4; i++) {
            const __m512 a = half[2 * i], b = half[2 * i + 1];
            quarter[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
        }
        const __m512 left = across(quarter[0], quarter[1]), right = across(quarter[2], quarter[3]);
        return {across(left, right)};
    }

  private:
    static inline __m512 across(__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
};

}  // namespace
