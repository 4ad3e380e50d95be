// Attention of single queries over a paged KV cache, read block by block where it lies. This file is compiled once for
// each instruction set; KVIK_ISA names the function that it makes. Everything else here is private to the file, so that
// the linker cannot put one set's code in the place of another's.

#include "queries.h"

#ifdef __AVX512F__
#include "vectors_avx512.h"
#else
#include "vectors_avx2.h"
#endif

namespace {

using kvik::kSplitTokens;
using kvik::Layer;
using kvik::Queries;
using kvik::Query;

constexpr int64_t kMostWidth = 256;
constexpr int kMostHeads = 4;  // of one KV head that are computed together
constexpr int64_t kAhead = 16;  // tokens whose keys are on their way
constexpr float kSmallestExponent = -87.3f;

// e^x for x <= 0, within 2 units in the last place; 0 below the smallest normal number.
inline Vector exponential(Vector x) {
    const Vector clamped = Vector::all(kSmallestExponent).larger(x);  // NaN in x stays
    const Vector n = (clamped * Vector::all(1.44269504088896341f)).rounded();
    Vector r = clamped.plus_product(n, Vector::all(-0.693359375f));
    r = r.plus_product(n, Vector::all(2.12194440e-4f));
    Vector p = Vector::all(1.9875691500e-4f);
    p = Vector::all(1.3981999507e-3f).plus_product(p, r);
    p = Vector::all(8.3334519073e-3f).plus_product(p, r);
    p = Vector::all(4.1665795894e-2f).plus_product(p, r);
    p = Vector::all(1.6666665459e-1f).plus_product(p, r);
    p = Vector::all(5.0000001201e-1f).plus_product(p, r);
    p = (r + Vector::all(1.0f)).plus_product(p, r * r);
    return p.scaled(n).zero_where_less(x, kSmallestExponent);
}

inline float first_lane(Vector x) {
    float lanes[Vector::kLanes];
    x.store(lanes);
    return lanes[0];
}

inline float largest_lane(Vector x) {
    float lanes[Vector::kLanes];
    x.store(lanes);
    float largest = lanes[0];
    for (int i = 1; i < Vector::kLanes; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}

inline float sum_of_lanes(Vector x) {
    float lanes[Vector::kLanes];
    x.store(lanes);
    float sum = 0.0f;
    for (int i = 0; i < Vector::kLanes; i++) sum += lanes[i];
    return sum;
}

// Queries as the dot product takes them: floats, but bf16 as it is where the CPU multiplies it.
template <typename T>
struct Heads {
    alignas(64) float q[kMostHeads][kMostWidth];

    void take(const T *query, int64_t stride, int heads, int64_t width) {
        for (int h = 0; h < heads; h++)
            for (int64_t d = 0; d < width; d += Vector::kLanes) Vector::load(query + h * stride + d).store(q[h] + d);
    }
    template <int H>
    inline void dot(const T *key, int64_t width, Vector *out) const {
        for (int h = 0; h < H; h++) out[h] = Vector::zero();
        for (int64_t d = 0; d < width; d += Vector::kLanes) {
            const Vector k = Vector::load(key + d);
            for (int h = 0; h < H; h++) out[h] = out[h].plus_product(k, Vector::load(q[h] + d));
        }
    }
};

#ifdef __AVX512BF16__
template <>
struct Heads<BFloat> {
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

// Where the keys or the values of one KV head lie.
template <typename T>
struct Region {
    const T *base;
    const int64_t *strides;
    const int32_t *table;
    int64_t block_tokens;

    inline const T *block(int64_t index) const { return base + static_cast<int64_t>(table[index]) * strides[0]; }
};

// Goes through a region's tokens one by one.
template <typename T>
struct Walk {
    const Region<T> &region;
    int64_t block;
    int64_t offset;
    const T *at;

    // No block is looked up but for a token that is asked for: of `count` from `token` on.
    Walk(const Region<T> &region, int64_t token, int64_t count)
        : region(region), block(token / region.block_tokens), offset(token % region.block_tokens) {
        at = count > 0 ? region.block(block) + offset * region.strides[2] : nullptr;
    }
    inline const T *next() {
        if (offset == region.block_tokens) {
            block++;
            offset = 0;
            at = region.block(block);
        }
        const T *token = at;
        at += region.strides[2];
        offset++;
        return token;
    }
    // Tokens that lie one after another from here on, of at most `most`; and steps over them.
    inline int64_t run(int64_t most, const T **from) {
        *from = next();
        const int64_t left = region.block_tokens - offset + 1;
        const int64_t count = left < most ? left : most;
        at += (count - 1) * region.strides[2];
        offset += count - 1;
        return count;
    }
};

// Brings tokens into the cache before they are needed: blocks lie apart, so what the CPU foresees ends with each of them.
template <typename T>
struct Fetch {
    Walk<T> walk;
    int64_t left;
    int64_t width;

    Fetch(const Region<T> &region, int64_t begin, int64_t count, int64_t width)
        : walk(region, begin, count), left(count), width(width) {}
    inline void next() {
        if (left == 0) return;
        left--;
        constexpr int64_t line = 64 / sizeof(T);
        const T *token = walk.next();
        for (int64_t d = 0; d < width; d += line) __builtin_prefetch(token + d);
    }
};

// Scores of `count` tokens from `begin` on, and each head's largest. The values, which come next, are fetched meanwhile.
template <typename T, int H>
void score(const Heads<T> &heads, const Region<T> &keys, const Region<T> &values, int64_t begin, int64_t count,
           int64_t width, float scale, float (*scores)[kSplitTokens], float *largest) {
    constexpr int W = Vector::kLanes;
    const float none = -__builtin_inff();
    Vector most[H];
    for (int h = 0; h < H; h++) most[h] = Vector::all(none);
    Walk<T> walk(keys, begin, count);
    Fetch<T> ahead(keys, begin, count, width), later(values, begin, count, width);
    for (int64_t i = 0; i < kAhead; i++) ahead.next();
    for (int64_t t = 0; t < count; t += W) {
        Vector parts[H][W];
        const int here = count - t < W ? static_cast<int>(count - t) : W;
        for (int i = 0; i < here; i++) {
            ahead.next();
            later.next();
            Vector dots[H];
            heads.template dot<H>(walk.next(), width, dots);
            for (int h = 0; h < H; h++) parts[h][i] = dots[h];
        }
        for (int i = here; i < W; i++)
            for (int h = 0; h < H; h++) parts[h][i] = Vector::zero();
        for (int h = 0; h < H; h++) {
            Vector sums = Vector::sums(parts[h]) * Vector::all(scale);
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

// C vectors of the weighted sum of values, from `column` on.
template <typename T, int H, int C>
void add_up(const float (*weights)[kSplitTokens], const Region<T> &values, int64_t column, int64_t begin, int64_t count,
            float (*out)[kMostWidth]) {
    constexpr int W = Vector::kLanes;
    Vector sums[H][C];
    for (int h = 0; h < H; h++)
        for (int c = 0; c < C; c++) sums[h][c] = Vector::zero();
    Walk<T> walk(values, begin, count);
    for (int64_t t = 0; t < count;) {
        const T *from;
        const int64_t run = walk.run(count - t, &from);
        for (int64_t i = 0; i < run; i++, t++, from += values.strides[2]) {
            Vector v[C];
            for (int c = 0; c < C; c++) v[c] = Vector::load(from + column + c * W);
            for (int h = 0; h < H; h++) {
                const Vector weight = Vector::all(weights[h][t]);
                for (int c = 0; c < C; c++) sums[h][c] = sums[h][c].plus_product(weight, v[c]);
            }
        }
    }
    for (int h = 0; h < H; h++)
        for (int c = 0; c < C; c++) sums[h][c].store(out[h] + column + c * W);
}

template <typename T, int H>
void add_up_all(const float (*weights)[kSplitTokens], const Region<T> &values, int64_t width, int64_t begin,
                int64_t count, float (*out)[kMostWidth]) {
    constexpr int W = Vector::kLanes, C = Vector::kColumns;
    int64_t column = 0;
    for (; column + C * W <= width; column += C * W) add_up<T, H, C>(weights, values, column, begin, count, out);
    for (; column + W <= width; column += W) add_up<T, H, 1>(weights, values, column, begin, count, out);
}

// What one thread computes at once: a split of a query's past, for the query heads of one KV head.
template <typename T>
struct Part {
    int64_t which;  // the query
    int64_t index;  // the split among those of all queries
    int64_t kv_head;
    int64_t begin;
    int64_t count;
    Region<T> keys;
    Region<T> values;
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

    Part<T> part_of(int64_t item) const {
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
                {static_cast<const T *>(layer.keys) + kv_head * layer.key_strides[1], layer.key_strides, table,
                 all.block_tokens},
                {static_cast<const T *>(layer.values) + kv_head * layer.value_strides[1], layer.value_strides, table,
                 all.block_tokens}};
    }

    void compute(const Part<T> &part) const {
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
    void heads_together(const Part<T> &part, int64_t head, int64_t splits) const {
        alignas(64) float scores[H][kSplitTokens];
        alignas(64) float sums[H][kMostWidth];
        float largest[H], weight[H];
        const int64_t width = all.width;
        Heads<T> queries;
        queries.take(static_cast<const T *>(layer.query) + part.which * layer.query_strides[0] +
                         head * layer.query_strides[1],
                     layer.query_strides[1], H, width);
        score<T, H>(queries, part.keys, part.values, part.begin, part.count, width, layer.scale, scores, largest);
        for (int h = 0; h < H; h++) weight[h] = weigh(scores[h], part.count, largest[h]);
        add_up_all<T, H>(scores, part.values, width, part.begin, part.count, sums);
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

// What the threads share: each takes the next part until none is left.
template <typename T>
struct Crew {
    Attention<T> attention;
    int64_t taken;

    static void work(void *self) {
        Crew &crew = *static_cast<Crew *>(self);
        const Attention<T> &attention = crew.attention;
        for (;;) {
            const int64_t item = __atomic_fetch_add(&crew.taken, 1, __ATOMIC_RELAXED);
            if (item >= attention.all.splits * attention.all.kv_heads) return;
            attention.compute(attention.part_of(item));
        }
    }
};

template <typename T>
void attend(const Queries &all, const Layer &layer) {
    Crew<T> crew{{all, layer}, 0};
    crew.attention.prepare();
    if (all.parallel && all.threads > 1) all.parallel(Crew<T>::work, &crew, static_cast<unsigned>(all.threads), 0);
    else Crew<T>::work(&crew);
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
