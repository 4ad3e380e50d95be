// What Python hands over for a product with a weight of int8: mirrored by kvik_kernels/cpu/structs.py.
#pragma once

#include "products.h"

namespace kvik {

// y = x W^T + b, with W in panels of int8, of which each output has a scale.
struct Int8Product {
    const void *x;  // [rows, inputs]
    int64_t x_stride;
    int64_t dtype;  // of x and bias: kFloat32 or kBFloat16
    int64_t rows;
    int64_t inputs;
    const int8_t *panels;   // [panels, quads, kPanelOutputs, 4], zeros past the last input and output
    const float *scales;    // [panels, kPanelOutputs]
    const int32_t *shifts;  // [panels, kPanelOutputs]: 128 times the sum of an output's weights
    int64_t outputs;
    const void *bias;  // [outputs], or null
    void *out;         // [rows, outputs]
    int64_t out_dtype;  // kFloat32 or kBFloat16
    uint8_t *bytes;     // [rows, 2, padded inputs]: the upper and the lower bytes of x, filled in here
    int64_t padded;     // inputs, up to a whole number of vectors
    float *row_scales;  // [rows], filled in here
    int64_t threads;
};

}  // namespace kvik
