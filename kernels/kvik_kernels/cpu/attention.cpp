// Attention of single queries over a paged KV cache, read block by block where it lies. This file is compiled once for
// each instruction set; KVIK_ISA names the function that it makes. Everything else here is private to the file, so that
// the linker cannot put one set's code in the place of another's.

#include "arithmetic.h"
#include "crew.h"
#include "queries.h"
#include "widen.h"

namespace {

using kvik::kSplitTokens;
using kvik::Layer;
using kvik::Queries;
using kvik::Query;

constexpr int64_t kMostWidth = 256;
constexpr int kMostHeads = 4;  // of one KV head that are computed together
constexpr int64_t kAhead = 16;  // tokens whose keys are on their way

// What an element of this type is multiplied by once it is loaded, beside its vector's scale.
template <typename T>
struct Stored {
    static constexpr bool kQuantised = false;
    static constexpr float kUnit = 1.0f;
};
template <>
struct Stored<Int8> {
    static constexpr bool kQuantised = true;
    static constexpr float kUnit = 1.0f;
};
template <>
struct Stored<Float8> {
    static constexpr bool kQuantised = true;
    static constexpr float kUnit = 256.0f;
};

// Queries as the dot product takes them: floats.
template <typename T, typename K>
struct Heads {
    alignas(64) float q[kMostHeads][kMostWidth];

    void take(const T *query, int64_t stride, int heads, int64_t width) {
        for (int h = 0; h < heads; h++)
            for (int64_t d = 0; d < width; d += Vector::kLanes) Vector::load(query + h * stride + d).store(q[h] + d);
    }
    template <int H>
    inline void dot(const K *key, int64_t width, Vector *out) const {
        for (int h = 0; h < H; h++) out[h] = Vector::zero();
        for (int64_t d = 0; d < width; d += Vector::kLanes) {
            const Vector k = Vector::load(key + d);
            for (int h = 0; h < H; h++) out[h] = out[h].plus_product(k, Vector::load(q[h] + d));
        }
    }
};

#ifdef __AVX512BF16__
// bf16 as it is, where keys are too and the CPU multiplies it.
template <>
struct Heads<BFloat, BFloat> {
    const BFloat *q[kMostHeads];

    void take(const BFloat *query, int64_t stride, int heads, int64_t) {
        for (int h = 0; h < heads; h++) q[h] = query + h * stride;
    }
    template <int H>
    inline void dot(const BFloat *key, int64_t width, Vector *out) const {
        for (int h = 0; h < H; h++) out[h] = Vector::zero();
        int64_t d = 0;
        for (; d + 32 <= width; d += 32) {
            const __m512bh k = (__m512bh)_mm512_loadu_si512(key + d);
            for (int h = 0; h < H; h++)
                out[h].v = _mm512_dpbf16_ps(out[h].v, k, (__m512bh)_mm512_loadu_si512(q[h] + d));
        }
        if (d < width) {
            const __m512bh k = half_of(key + d);
            for (int h = 0; h < H; h++) out[h].v = _mm512_dpbf16_ps(out[h].v, k, half_of(q[h] + d));
        }
    }

  private:
    static inline __m512bh half_of(const BFloat *p) {
        return (__m512bh)_mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
};
#endif

// Where the keys or the values of one KV head lie. Of whatever type, so strides are in bytes here.
struct Region {
    const char *base;
    int64_t block_stride;
    int64_t token_stride;
    int64_t vector_bytes;
    const uint16_t *scales;  // null: none
    int64_t scale_stride;    // of blocks, in scales
    const int32_t *table;
    int64_t block_tokens;

    inline const char *block(int64_t index) const { return base + static_cast<int64_t>(table[index]) * block_stride; }
    inline const uint16_t *block_scales(int64_t index) const {
        return scales + static_cast<int64_t>(table[index]) * scale_stride;
    }
};

// A region's tokens from `begin` on.
struct Tokens {
    const Region &region;
    int64_t begin;
};

// Goes through a region's tokens one by one.
struct Walk {
    const Region &region;
    int64_t block;
    int64_t offset;
    const char *at;

    // No block is looked up but for a token that is asked for: of `count` from `token` on.
    Walk(const Tokens &from, int64_t count)
        : region(from.region), block(from.begin / region.block_tokens), offset(from.begin % region.block_tokens) {
        at = count > 0 ? region.block(block) + offset * region.token_stride : nullptr;
    }
    inline const char *next() {
        if (offset == region.block_tokens) {
            block++;
            offset = 0;
            at = region.block(block);
        }
        const char *token = at;
        at += region.token_stride;
        offset++;
        return token;
    }
    // Tokens that lie one after another from here on, of at most `most`; and steps over them.
    inline int64_t run(int64_t most, const char **from) {
        *from = next();
        const int64_t left = region.block_tokens - offset + 1;
        const int64_t count = left < most ? left : most;
        at += (count - 1) * region.token_stride;
        offset += count - 1;
        return count;
    }
};

// What the vectors of `count` tokens are to be multiplied by; 0 behind them, to a whole register.
void load_scales(const Tokens &from, int64_t count, float unit, float *out) {
    const Region &region = from.region;
    int64_t block = from.begin / region.block_tokens, offset = from.begin % region.block_tokens, t = 0;
    for (; t < count && !region.scales; t++) out[t] = unit;
    for (; t < count; block++, offset = 0) {
        const uint16_t *scales = region.block_scales(block);
        for (; t < count && offset < region.block_tokens; t++, offset++) {
            const uint32_t bits = static_cast<uint32_t>(scales[offset]) << 16;
            float scale;
            __builtin_memcpy(&scale, &bits, sizeof scale);
            out[t] = scale * unit;
        }
    }
    for (; t % Vector::kLanes; t++) out[t] = 0.0f;
}

// Brings tokens into the cache before they are needed: blocks lie apart, so what the CPU foresees ends with each of them.
struct Fetch {
    Walk walk;
    int64_t left;

    Fetch(const Tokens &from, int64_t count) : walk(from, count), left(count) {}
    inline void next() {
        if (left == 0) return;
        left--;
        const char *token = walk.next();
        for (int64_t byte = 0; byte < walk.region.vector_bytes; byte += 64) __builtin_prefetch(token + byte);
    }
};

// Scores of `count` tokens, and each head's largest. The values, which come next, are fetched meanwhile.
template <typename T, typename K, int H>
void score(const Heads<T, K> &heads, const Tokens &keys, const Tokens &values, int64_t count, int64_t width, float scale,
           float (*scores)[kSplitTokens], float *largest) {
    constexpr int W = Vector::kLanes;
    const float none = -__builtin_inff();
    Vector most[H];
    for (int h = 0; h < H; h++) most[h] = Vector::all(none);
    Walk walk(keys, count);
    Fetch ahead(keys, count), later(values, count);
    alignas(64) float scales[Stored<K>::kQuantised ? kSplitTokens : W];
    if (Stored<K>::kQuantised) load_scales(keys, count, Stored<K>::kUnit * scale, scales);
    for (int64_t i = 0; i < kAhead; i++) ahead.next();
    for (int64_t t = 0; t < count; t += W) {
        Vector parts[H][W];
        const int here = count - t < W ? static_cast<int>(count - t) : W;
        for (int i = 0; i < here; i++) {
            ahead.next();
            later.next();
            Vector dots[H];
            heads.template dot<H>(reinterpret_cast<const K *>(walk.next()), width, dots);
            for (int h = 0; h < H; h++) parts[h][i] = dots[h];
        }
        for (int i = here; i < W; i++)
            for (int h = 0; h < H; h++) parts[h][i] = Vector::zero();
        const Vector factors = Stored<K>::kQuantised ? Vector::load(scales + t) : Vector::all(scale);
        for (int h = 0; h < H; h++) {
            Vector sums = Vector::sums(parts[h]) * factors;
            if (here < W) sums = sums.first(here, none);
            sums.store(scores[h] + t);
            most[h] = most[h].larger(sums);
        }
    }
    for (int h = 0; h < H; h++) largest[h] = largest_lane(most[h]);
}

// Scores to weights, not yet divided by their sum, which is returned.
inline float weigh(float *scores, int64_t count, float largest) {
    Vector sum = Vector::zero();
    for (int64_t t = 0; t < count; t += Vector::kLanes) {
        const Vector weights = exponential(Vector::load(scores + t) - Vector::all(largest));
        weights.store(scores + t);
        sum = sum + weights;
    }
    return sum_of_lanes(sum);
}

// Weights of quantised values take their scales, so that the values themselves are summed as they are.
template <int H>
void scale_weights(float (*weights)[kSplitTokens], const Tokens &values, int64_t count, float unit) {
    alignas(64) float scales[kSplitTokens];
    load_scales(values, count, unit, scales);
    for (int h = 0; h < H; h++)
        for (int64_t t = 0; t < count; t += Vector::kLanes)
            (Vector::load(weights[h] + t) * Vector::load(scales + t)).store(weights[h] + t);
}

// C vectors of the weighted sum of values, from `column` on.
template <typename V, int H, int C>
void add_up(const float (*weights)[kSplitTokens], const Tokens &values, int64_t column, int64_t count,
            float (*out)[kMostWidth]) {
    constexpr int W = Vector::kLanes;
    Vector sums[H][C];
    for (int h = 0; h < H; h++)
        for (int c = 0; c < C; c++) sums[h][c] = Vector::zero();
    Walk walk(values, count);
    for (int64_t t = 0; t < count;) {
        const char *from;
        const int64_t run = walk.run(count - t, &from);
        for (int64_t i = 0; i < run; i++, t++, from += values.region.token_stride) {
            const V *value = reinterpret_cast<const V *>(from);
            Vector v[C];
            for (int c = 0; c < C; c++) v[c] = Vector::load(value + column + c * W);
            for (int h = 0; h < H; h++) {
                const Vector weight = Vector::all(weights[h][t]);
                for (int c = 0; c < C; c++) sums[h][c] = sums[h][c].plus_product(weight, v[c]);
            }
        }
    }
    for (int h = 0; h < H; h++)
        for (int c = 0; c < C; c++) sums[h][c].store(out[h] + column + c * W);
}

template <typename V, int H>
void add_up_all(float (*weights)[kSplitTokens], const Tokens &values, int64_t width, int64_t count,
                float (*out)[kMostWidth]) {
    constexpr int W = Vector::kLanes, C = Vector::kColumns;
    if (Stored<V>::kQuantised) scale_weights<H>(weights, values, count, Stored<V>::kUnit);
    int64_t column = 0;
    for (; column + C * W <= width; column += C * W) add_up<V, H, C>(weights, values, column, count, out);
    for (; column + W <= width; column += W) add_up<V, H, 1>(weights, values, column, count, out);
}

// A split's tokens of four bits an element, widened.
class Widened {
  public:
    Widened(const Tokens &from, int64_t count, int64_t width) {
        const Region &packed = from.region;
        const int64_t scales = kvik::scales_of(kvik::kInt4, width);
        Walk walk(from, count);
        for (int64_t t = 0; t < count; t++) {
            const char *bytes = walk.next();
            widen(reinterpret_cast<const uint8_t *>(bytes), packed.block_scales(walk.block) + (walk.offset - 1) * scales,
                  width, floats_ + t * width);
        }
        const int64_t size = width * static_cast<int64_t>(sizeof(float));
        region_ = {reinterpret_cast<const char *>(floats_), 0, size, size, nullptr, 0, &kOnlyBlock, kSplitTokens};
    }
    Tokens tokens() const { return {region_, 0}; }

  private:
    static constexpr int32_t kOnlyBlock = 0;
    alignas(64) float floats_[kSplitTokens * kMostWidth];
    Region region_;
};

// What one thread computes at once: a split of a query's past, for the query heads of one KV head.
struct Part {
    int64_t which;  // the query
    int64_t index;  // the split among those of all queries
    int64_t kv_head;
    int64_t begin;
    int64_t count;
    Region keys;
    Region values;
};

template <typename T>
struct Attention {
    const Queries &all;
    const Layer &layer;

    int64_t heads() const { return all.kv_heads * all.group; }
    float *partial(int64_t split, int64_t head) const {
        return all.partials + (split * heads() + head) * (all.width + 2);
    }
    T *out(int64_t query, int64_t head) const {
        return static_cast<T *>(layer.out) + query * layer.out_strides[0] + head * layer.out_strides[1];
    }
    static int64_t splits_of(const Query &query) {
        const int64_t seen = query.end - query.first;
        return seen <= kSplitTokens ? 1 : (seen + kSplitTokens - 1) / kSplitTokens;
    }

    // The query that split `index` of all belongs to.
    int64_t query_of(int64_t index) const {
        int64_t low = 0, high = all.count - 1;
        while (low < high) {
            const int64_t middle = (low + high + 1) / 2;
            if (all.queries[middle].items <= index) low = middle;
            else high = middle - 1;
        }
        return low;
    }

    Part part_of(int64_t item) const {
        const int64_t index = item / all.kv_heads, kv_head = item % all.kv_heads, which = query_of(index);
        const Query &query = all.queries[which];
        const int64_t begin = query.first + (index - query.items) * kSplitTokens;
        const int64_t left = query.end - begin;
        const int32_t *table = all.tables + query.table * all.table_stride;
        return {which,
                index,
                kv_head,
                begin,
                left <= 0 ? 0 : left < kSplitTokens ? left : kSplitTokens,
                region(layer.keys, layer.key_strides, layer.key_scales, layer.key_scale_strides, all.key_dtype, kv_head,
                       table),
                region(layer.values, layer.value_strides, layer.value_scales, layer.value_scale_strides,
                       all.value_dtype, kv_head, table)};
    }

    // One KV head's part of a layer.
    Region region(const void *base, const int64_t *strides, const uint16_t *scales, const int64_t *scale_strides,
                  int64_t dtype, int64_t kv_head, const int32_t *table) const {
        const int64_t size = dtype >= kvik::kInt8 ? 1 : sizeof(T);
        return {static_cast<const char *>(base) + kv_head * strides[1] * size,
                strides[0] * size,
                strides[2] * size,
                dtype == kvik::kInt4 ? all.width / 2 : all.width * size,
                scales ? scales + kv_head * scale_strides[1] : nullptr,
                scale_strides[0],
                table,
                all.block_tokens};
    }

    void compute(const Part &part) const {
        if (part.count == 0) return write_zeros(part.which, part.kv_head);
        const Query &query = all.queries[part.which];
        const int64_t splits = splits_of(query), first_head = part.kv_head * all.group;
        for (int64_t member = 0; member < all.group; member += kMostHeads) {
            switch (all.group - member) {
                case 1: heads_together<1>(part, first_head + member, splits); break;
                case 2: heads_together<2>(part, first_head + member, splits); break;
                case 3: heads_together<3>(part, first_head + member, splits); break;
                default: heads_together<4>(part, first_head + member, splits);
            }
        }
        if (splits == 1) return;
        int32_t *pending = all.pending + part.which * all.kv_heads + part.kv_head;
        if (__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL) == 0)
            for (int64_t member = 0; member < all.group; member++)
                merge(part.which, query.items, splits, first_head + member);
    }

    template <int H>
    void heads_together(const Part &part, int64_t head, int64_t splits) const {
        alignas(64) float scores[H][kSplitTokens];
        alignas(64) float sums[H][kMostWidth];
        float largest[H], weight[H];
        const int64_t width = all.width;
        const Tokens keys{part.keys, part.begin}, values{part.values, part.begin};
        switch (all.key_dtype) {
            case kvik::kInt4: score_widened<H>(part, keys, head, scores, largest); break;
            case kvik::kInt8: score_heads<Int8, H>(part, keys, head, scores, largest); break;
            case kvik::kFloat8E4M3: score_heads<Float8, H>(part, keys, head, scores, largest); break;
            default: score_heads<T, H>(part, keys, head, scores, largest);
        }
        for (int h = 0; h < H; h++) weight[h] = weigh(scores[h], part.count, largest[h]);
        switch (all.value_dtype) {
            case kvik::kInt4: add_up_widened<H>(scores, values, width, part.count, sums); break;
            case kvik::kInt8: add_up_all<Int8, H>(scores, values, width, part.count, sums); break;
            case kvik::kFloat8E4M3: add_up_all<Float8, H>(scores, values, width, part.count, sums); break;
            default: add_up_all<T, H>(scores, values, width, part.count, sums);
        }
        for (int h = 0; h < H; h++) {
            if (splits == 1) {
                const Vector share = Vector::all(1.0f / weight[h]);
                for (int64_t d = 0; d < width; d += Vector::kLanes)
                    (Vector::load(sums[h] + d) * share).store(out(part.which, head + h) + d);
            } else {
                float *kept = partial(part.index, head + h);
                for (int64_t d = 0; d < width; d += Vector::kLanes) Vector::load(sums[h] + d).store(kept + d);
                kept[width] = largest[h];
                kept[width + 1] = weight[h];
            }
        }
    }

    // The buffer for what is widened is large: it is in the frame of these two alone, one after the other.
    template <int H>
    __attribute__((noinline)) void score_widened(const Part &part, const Tokens &keys, int64_t head,
                                                 float (*scores)[kSplitTokens], float *largest) const {
        const Widened wide(keys, part.count, all.width);
        score_heads<float, H>(part, wide.tokens(), head, scores, largest);
    }
    template <int H>
    __attribute__((noinline)) static void add_up_widened(float (*weights)[kSplitTokens], const Tokens &values,
                                                         int64_t width, int64_t count, float (*out)[kMostWidth]) {
        const Widened wide(values, count, width);
        add_up_all<float, H>(weights, wide.tokens(), width, count, out);
    }

    template <typename K, int H>
    void score_heads(const Part &part, const Tokens &keys, int64_t head, float (*scores)[kSplitTokens],
                     float *largest) const {
        Heads<T, K> queries;
        queries.take(static_cast<const T *>(layer.query) + part.which * layer.query_strides[0] +
                         head * layer.query_strides[1],
                     layer.query_strides[1], H, all.width);
        score<T, K, H>(queries, keys, {part.values, part.begin}, part.count, all.width, layer.scale, scores, largest);
    }

    // Splits in their order, whichever thread comes last to do it.
    void merge(int64_t which, int64_t first, int64_t splits, int64_t head) const {
        const int64_t width = all.width;
        float largest = -__builtin_inff();
        for (int64_t s = 0; s < splits; s++) {
            const float one = partial(first + s, head)[width];
            largest = one > largest ? one : largest;
        }
        alignas(64) float sum[kMostWidth] = {};
        float weight = 0.0f;
        for (int64_t s = 0; s < splits; s++) {
            const float *one = partial(first + s, head);
            const float share = first_lane(exponential(Vector::all(one[width] - largest)));
            weight += share * one[width + 1];
            for (int64_t d = 0; d < width; d += Vector::kLanes)
                Vector::load(sum + d).plus_product(Vector::all(share), Vector::load(one + d)).store(sum + d);
        }
        const Vector share = Vector::all(1.0f / weight);
        for (int64_t d = 0; d < width; d += Vector::kLanes) (Vector::load(sum + d) * share).store(out(which, head) + d);
    }

    void write_zeros(int64_t which, int64_t kv_head) const {
        for (int64_t member = 0; member < all.group; member++)
            for (int64_t d = 0; d < all.width; d += Vector::kLanes)
                Vector::zero().store(out(which, kv_head * all.group + member) + d);
    }

    void prepare() const {
        for (int64_t which = 0; which < all.count; which++)
            for (int64_t kv_head = 0; kv_head < all.kv_heads; kv_head++)
                all.pending[which * all.kv_heads + kv_head] = static_cast<int32_t>(splits_of(all.queries[which]));
    }
};

template <typename T>
void attend(const Queries &all, const Layer &layer) {
    const Attention<T> attention{all, layer};
    attention.prepare();
    share_out(all.threads, all.splits * all.kv_heads,
              [&](int64_t item) { attention.compute(attention.part_of(item)); });
}

}  // namespace

namespace kvik {

void KVIK_ISA(const Queries &all, const Layer &layer) {
    switch (all.dtype) {
        case kFloat32: return attend<float>(all, layer);
        case kFloat16: return attend<Half>(all, layer);
        case kBFloat16: return attend<BFloat>(all, layer);
    }
}

}  // namespace kvik
