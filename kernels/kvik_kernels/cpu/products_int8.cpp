// Products with a weight of int8, by AVX512's products of bytes.
//
// A row of x becomes whole numbers of 16 bits, of the scale that its largest element needs: so fine that elements down to
// a 128th of it are rounded no more than bfloat16 rounds them. Their upper and lower bytes are multiplied apart, each in
// one instruction for 64 elements of the weight, and the sums are whole numbers: they depend on no order, and a row's on
// no other row.

#include "products_int8.h"

#include <string.h>

#include "arithmetic.h"
#include "crew.h"

namespace {

using kvik::Int8Product;
using kvik::kPanelOutputs;

constexpr float kLargest = 127.0f * 256.0f;  // so that an upper byte is -127 to 127
constexpr int kTileRows = 6;                 // with two registers of sums of each half of the bytes, beside the weight's
constexpr int64_t kGroupRows = 48;           // rows that share what is read of a panel
constexpr int64_t kRowsTogether = 4;         // that one thread takes to bytes
constexpr int kHalf = 16;                    // outputs of a register
constexpr int64_t kAhead = 32;               // quads that are fetched before they are needed

int64_t ceiling(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// --- a row to bytes ---

template <typename T>
Vector some_of(const T *row, int64_t left) {
    if (left >= Vector::kLanes) return Vector::load(row);
    T rest[Vector::kLanes] = {};
    memcpy(rest, row, left * sizeof(T));
    return Vector::load(rest);
}

// The largest magnitude. NaN has larger bits than any number.
template <typename T>
float largest_of(const T *row, int64_t inputs) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t at = 0; at < inputs; at += Vector::kLanes)
        largest = _mm512_max_epi32(largest, _mm512_castps_si512(some_of(row + at, inputs - at).magnitude().v));
    const int bits = _mm512_reduce_max_epi32(largest);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T>
void to_bytes(const Int8Product &all, int64_t index) {
    const T *row = static_cast<const T *>(all.x) + index * all.x_stride;
    uint8_t *upper = all.bytes + index * 2 * all.padded, *lower = upper + all.padded;
    const float largest = largest_of(row, all.inputs);
    const float factor = kLargest / largest;
    // A row of zeros, or of numbers too small to be told from them, is zeros.
    const bool zeros = factor == __builtin_inff();
    const Vector by = Vector::all(zeros ? 0.0f : factor);
    all.row_scales[index] = largest / kLargest;
    for (int64_t at = 0; at < all.inputs; at += Vector::kLanes) {
        const __m512i whole = _mm512_cvtps_epi32((some_of(row + at, all.inputs - at) * by).v);
        const __m512i above = _mm512_add_epi32(_mm512_srai_epi32(whole, 8), _mm512_set1_epi32(128));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(upper + at), _mm512_cvtepi32_epi8(above));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(lower + at), _mm512_cvtepi32_epi8(whole));
    }
}

// --- products ---

template <typename T>
void store_some(Vector values, T *out, int64_t left) {
    if (left >= Vector::kLanes) return values.store(out);
    T all[Vector::kLanes];
    values.store(all);
    if (left > 0) memcpy(out, all, left * sizeof(T));
}

inline __m512i four(const uint8_t *bytes) {
    uint32_t together;
    memcpy(&together, bytes, sizeof together);
    return _mm512_set1_epi32(static_cast<int>(together));
}

// Sums of the upper and lower bytes of R rows, for both halves of a panel: a member each, for a compiler keeps those in
// registers, and arrays of them in memory.
template <int R>
struct Sums {
    __m512i upper_left{}, upper_right{}, lower_left{}, lower_right{};
    Sums<R - 1> others;

    // `x`: four upper bytes of the first row; `padded` behind them its lower ones, and then the next row.
    __attribute__((always_inline)) inline void add(const uint8_t *x, int64_t padded, __m512i left, __m512i right) {
        const __m512i upper = four(x), lower = four(x + padded);
        upper_left = _mm512_dpbusd_epi32(upper_left, upper, left);
        upper_right = _mm512_dpbusd_epi32(upper_right, upper, right);
        lower_left = _mm512_dpbusd_epi32(lower_left, lower, left);
        lower_right = _mm512_dpbusd_epi32(lower_right, lower, right);
        others.add(x + 2 * padded, padded, left, right);
    }

    // To [R, 2 parts, kPanelOutputs].
    inline void store(int32_t *out) const {
        _mm512_storeu_si512(out, upper_left);
        _mm512_storeu_si512(out + kHalf, upper_right);
        _mm512_storeu_si512(out + 2 * kHalf, lower_left);
        _mm512_storeu_si512(out + 3 * kHalf, lower_right);
        others.store(out + 4 * kHalf);
    }
};

template <>
struct Sums<0> {
    inline void add(const uint8_t *, int64_t, __m512i, __m512i) {}
    inline void store(int32_t *) const {}
};

// What a tile computes: outputs of one panel for some rows.
struct Tile {
    const Int8Product &all;
    int64_t panel;
    int64_t row;

    template <int R>
    void sum(int32_t *out) const {
        Sums<R> sums;
        const int64_t quads = ceiling(all.inputs, 4), padded = all.padded;
        const int8_t *weight = all.panels + panel * quads * kPanelOutputs * 4;
        const uint8_t *x = all.bytes + row * 2 * padded;
        for (int64_t quad = 0; quad < quads; quad++, weight += kPanelOutputs * 4, x += 4) {
            // Past the weight's end nothing is read: a fetch of what is not there is none.
            _mm_prefetch(weight + kAhead * kPanelOutputs * 4, _MM_HINT_T0);
            _mm_prefetch(weight + kAhead * kPanelOutputs * 4 + 64, _MM_HINT_T0);
            sums.add(x, padded, _mm512_loadu_si512(weight), _mm512_loadu_si512(weight + 64));
        }
        sums.store(out);
    }

    Vector bias(int64_t output) const {
        const int64_t left = all.outputs - output;
        if (!all.bias || left <= 0) return Vector::zero();
        return all.dtype == kvik::kFloat32 ? some_of(static_cast<const float *>(all.bias) + output, left)
                                           : some_of(static_cast<const BFloat *>(all.bias) + output, left);
    }

    void keep(int64_t index, int half, const int32_t *sums) const {
        const int64_t output = panel * kPanelOutputs + half * kHalf, left = all.outputs - output;
        const __m512i upper = _mm512_loadu_si512(sums + half * kHalf);
        const __m512i lower = _mm512_loadu_si512(sums + (2 + half) * kHalf);
        const __m512i shift = _mm512_loadu_si512(all.shifts + output);
        const Vector high{_mm512_cvtepi32_ps(_mm512_sub_epi32(upper, shift))}, low{_mm512_cvtepi32_ps(lower)};
        const Vector sum = low.plus_product(high, Vector::all(256.0f)) * Vector::all(all.row_scales[index]);
        const Vector y = bias(output).plus_product(sum, Vector::load(all.scales + output));
        const int64_t at = index * all.outputs + output;
        if (all.out_dtype == kvik::kFloat32) store_some(y, static_cast<float *>(all.out) + at, left);
        else store_some(y, static_cast<BFloat *>(all.out) + at, left);
    }

    void compute(int64_t rows) const {
        alignas(64) int32_t sums[kTileRows * 4 * kHalf];
        sum(rows, sums);
        for (int64_t r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++) keep(row + r, half, sums + r * 4 * kHalf);
    }

    void sum(int64_t rows, int32_t *out) const {
        switch (rows) {
            case 1: return sum<1>(out);
            case 2: return sum<2>(out);
            case 3: return sum<3>(out);
            case 4: return sum<4>(out);
            case 5: return sum<5>(out);
            case 6: return sum<6>(out);
        }
    }
};

// One panel for one group of rows.
void compute_item(const Int8Product &all, int64_t groups, int64_t item) {
    const int64_t panel = item / groups, first = item % groups * kGroupRows;
    const int64_t rows = all.rows - first < kGroupRows ? all.rows - first : kGroupRows;
    const int64_t most = ceiling(rows, ceiling(rows, kTileRows));  // tiles of about one size
    for (int64_t row = 0; row < rows; row += most)
        Tile{all, panel, first + row}.compute(rows - row < most ? rows - row : most);
}

}  // namespace

namespace kvik {

void multiply_avx512_vnni(const Int8Product &all) {
    const int64_t parts = ceiling(all.rows, kRowsTogether);
    share_out(all.threads, parts, [&](int64_t item) {
        const int64_t end = (item + 1) * kRowsTogether < all.rows ? (item + 1) * kRowsTogether : all.rows;
        for (int64_t row = item * kRowsTogether; row < end; row++)
            all.dtype == kFloat32 ? to_bytes<float>(all, row) : to_bytes<BFloat>(all, row);
    });
    const int64_t groups = ceiling(all.rows, kGroupRows);
    share_out(all.threads, groups * ceiling(all.outputs, kPanelOutputs),
              [&](int64_t item) { compute_item(all, groups, item); });
}

}  // namespace kvik
