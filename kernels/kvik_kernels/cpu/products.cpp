// Products with a weight in panels, by AVX512's products of bfloat16.
//
// A panel is read once for up to 48 rows, and in one direction, so that a product of few rows takes the time in which
// memory gives the weight. A row's sums are added up in fp32 in one order, whatever rows there are beside it, and
// rounded once.

#include "products.h"

#include <immintrin.h>
#include <string.h>

#include "crew.h"

namespace {

using kvik::kPanelOutputs;
using kvik::Product;

constexpr int kTileRows = 12;         // with two registers of sums each, beside those of the weight
constexpr int64_t kGroupRows = 48;    // rows that share what is read of a panel
constexpr int64_t kChunkPairs = 2048;  // of a panel, 256 KB: the second-level cache keeps them for a group's tiles
constexpr int64_t kAhead = 64;        // pairs that are fetched before they are needed

int64_t ceiling(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// What a tile computes: outputs of one panel for some rows, over pairs [begin, end).
struct Tile {
    const Product &all;
    int64_t panel;
    int64_t row;
    int64_t begin;
    int64_t end;
    float *kept;  // [rows, kPanelOutputs]: sums of the pairs before, and of these ones for the next chunk

    __mmask16 mask(int half) const {
        const int64_t left = all.outputs - panel * kPanelOutputs - 16 * half;
        return left >= 16 ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
    }

    __m512 first_sum(int row_of_tile, int half) const {
        if (begin > 0) return _mm512_loadu_ps(kept + row_of_tile * kPanelOutputs + 16 * half);
        if (!all.bias) return _mm512_setzero_ps();
        const uint16_t *bias = all.bias + panel * kPanelOutputs + 16 * half;
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(half), bias));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }

    void keep(int row_of_tile, int half, __m512 sum) const {
        if (end < all.pairs) return _mm512_storeu_ps(kept + row_of_tile * kPanelOutputs + 16 * half, sum);
        const int64_t at = (row + row_of_tile) * all.outputs + panel * kPanelOutputs + 16 * half;
        if (all.out_dtype == kvik::kFloat32)
            _mm512_mask_storeu_ps(static_cast<float *>(all.out) + at, mask(half), sum);
        else
            _mm256_mask_storeu_epi16(static_cast<uint16_t *>(all.out) + at, mask(half),
                                     (__m256i)_mm512_cvtneps_pbh(sum));
    }

    template <int R>
    void compute() const {
        __m512 sums[R][2];
        for (int r = 0; r < R; r++)
            for (int half = 0; half < 2; half++) sums[r][half] = first_sum(r, half);
        const uint32_t *weight = all.panels + (panel * all.pairs + begin) * kPanelOutputs;
        const uint16_t *x = all.x + row * all.x_stride + 2 * begin;
        for (int64_t pair = 0; pair < end - begin; pair++, weight += kPanelOutputs) {
            // Past the weight's end nothing is read: a fetch of what is not there is none.
            _mm_prefetch(reinterpret_cast<const char *>(weight + kAhead * kPanelOutputs), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char *>(weight + kAhead * kPanelOutputs + 16), _MM_HINT_T0);
            const __m512bh left = (__m512bh)_mm512_loadu_si512(weight);
            const __m512bh right = (__m512bh)_mm512_loadu_si512(weight + 16);
            for (int r = 0; r < R; r++) {
                uint32_t two;
                memcpy(&two, x + r * all.x_stride + 2 * pair, sizeof two);
                const __m512bh both = (__m512bh)_mm512_set1_epi32(static_cast<int>(two));
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, left);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, right);
            }
        }
        for (int r = 0; r < R; r++)
            for (int half = 0; half < 2; half++) keep(r, half, sums[r][half]);
    }

    void compute(int64_t rows) const {
        switch (rows) {
            case 1: return compute<1>();
            case 2: return compute<2>();
            case 3: return compute<3>();
            case 4: return compute<4>();
            case 5: return compute<5>();
            case 6: return compute<6>();
            case 7: return compute<7>();
            case 8: return compute<8>();
            case 9: return compute<9>();
            case 10: return compute<10>();
            case 11: return compute<11>();
            case 12: return compute<12>();
        }
    }
};

// One panel for one group of rows.
struct Item {
    const Product &all;

    int64_t groups() const { return ceiling(all.rows, kGroupRows); }
    int64_t count() const { return groups() * ceiling(all.outputs, kPanelOutputs); }

    void operator()(int64_t item) const {
        alignas(64) float kept[kGroupRows * kPanelOutputs];
        const int64_t panel = item / groups(), first = item % groups() * kGroupRows;
        const int64_t rows = all.rows - first < kGroupRows ? all.rows - first : kGroupRows;
        const int64_t most = ceiling(rows, ceiling(rows, kTileRows));  // tiles of about one size
        for (int64_t begin = 0; begin < all.pairs; begin += kChunkPairs) {
            const int64_t end = all.pairs - begin < kChunkPairs ? all.pairs : begin + kChunkPairs;
            for (int64_t row = 0; row < rows; row += most) {
                const Tile tile{all, panel, first + row, begin, end, kept + row * kPanelOutputs};
                tile.compute(rows - row < most ? rows - row : most);
            }
        }
    }
};

}  // namespace

namespace kvik {

void multiply_avx512_bf16(const Product &all) {
    const Item item{all};
    share_out(all.threads, item.count(), item);
}

}  // namespace kvik
