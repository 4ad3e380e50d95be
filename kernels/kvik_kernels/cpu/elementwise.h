// What Python hands over for the work between products: mirrored by kvik_kernels/cpu/structs.py.
#pragma once

#include "queries.h"

namespace kvik {

// x += addend, then x / sqrt(mean(x^2) + epsilon) * weight, row by row.
struct Norm {
    float *x;            // [rows, width]
    const void *addend;  // [rows, width] of dtype; null: none, and x stays
    const float *weight;
    void *out;  // [rows, width] of dtype
    int64_t dtype;
    int64_t rows;
    int64_t width;
    int64_t threads;
    float epsilon;
};

// Pairs (i, i + half) of each head, turned in place.
struct Rotation {
    void *x;  // [rows, heads, 2 * half] of dtype: a row is a token
    int64_t dtype;
    int64_t token_stride;
    int64_t head_stride;
    int64_t rows;
    int64_t heads;
    int64_t half;
    const float *cos;  // [rows, half]
    const float *sin;
    int64_t threads;
};

enum Activation : int64_t { kSilu = 0, kGeluTanh = 1 };

// activation(gate) * up.
struct Gate {
    const void *gate_up;  // [rows, 2 * width] of dtype
    void *out;            // [rows, width]
    int64_t dtype;
    int64_t activation;
    int64_t rows;
    int64_t width;
    int64_t threads;
};

}  // namespace kvik
