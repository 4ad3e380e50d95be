// What Python hands over: mirrored by kvik_kernels/cpu/structs.py. Strides are in elements.
#pragma once

#include <stdint.h>

namespace kvik {

// One query: its row's table, and the keys [first, end) that it sees.
struct Query {
    int64_t table;
    int64_t first;
    int64_t end;
    int64_t items;  // splits of the queries before this one
};

// What a step's indices must stay below.
struct Bounds {
    int64_t rows;     // of the block tables
    int64_t columns;
    int64_t blocks;   // of the cache
    int64_t block_tokens;
};

// The last three are quantised. A bfloat16 for each vector says what its elements are multiplied by, which float8 may do
// without. Four bits have two for each group of elements: kvik_kernels/quantised/int4.py says how all of it lies.
enum Dtype : int64_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kInt8 = 3, kFloat8E4M3 = 4, kInt4 = 5 };
constexpr int64_t kGroup = 32;

// Of one vector, where it has any.
inline int64_t scales_of(int64_t dtype, int64_t width) { return dtype == kInt4 ? width / kGroup * 2 : 1; }

struct Queries {
    const Query *queries;
    const int32_t *tables;
    int64_t table_stride;
    int64_t count;
    int64_t splits;  // of all queries together
    int64_t kv_heads;
    int64_t group;
    int64_t width;
    int64_t block_tokens;
    int64_t dtype;      // of queries and results
    int64_t key_dtype;  // that, or quantised
    int64_t value_dtype;
    float *partials;   // [splits, heads, width + 2]: an unweighted sum, its largest score, its weight
    int32_t *pending;  // [count, kv_heads]: splits that are not computed yet
    int64_t threads;
};

// One layer.
struct Layer {
    const void *query;
    const void *keys;
    const void *values;
    void *out;
    int64_t query_strides[2];
    int64_t key_strides[3];
    int64_t value_strides[3];
    int64_t out_strides[2];
    const uint16_t *key_scales;  // [blocks, heads, block_tokens, ...] by strides of blocks and heads; null: none
    const uint16_t *value_scales;
    int64_t key_scale_strides[2];
    int64_t value_scale_strides[2];
    float scale;
};

// Where new keys and values go, in each layer.
struct Writes {
    const int64_t *slots;  // [tokens]: block * block_tokens + offset
    int64_t tokens;
    int64_t heads;
    int64_t width;
    int64_t block_tokens;
    int64_t dtype;
    int64_t key_dtype;
    int64_t value_dtype;
};

// New keys and values of one layer.
struct NewTokens {
    const void *key;
    const void *value;
    void *keys;
    void *values;
    int64_t new_key_strides[2];
    int64_t new_value_strides[2];
    int64_t key_strides[3];
    int64_t value_strides[3];
    uint16_t *key_scales;  // as in Layer
    uint16_t *value_scales;
    int64_t key_scale_strides[2];
    int64_t value_scale_strides[2];
};

// A query's past is split by its own length alone, so that its result depends on nothing else.
constexpr int64_t kSplitTokens = 256;

}  // namespace kvik
