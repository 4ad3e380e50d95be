// What Python hands over for a product: mirrored by kvik_kernels/cpu/structs.py.
#pragma once

#include "queries.h"

namespace kvik {

// Outputs that lie side by side in a panel: two registers of sums.
constexpr int64_t kPanelOutputs = 32;

// y = x W^T + b, with W in panels.
struct Product {
    const uint16_t *x;  // bfloat16 [rows, 2 * pairs]
    int64_t x_stride;
    int64_t rows;
    const uint32_t *panels;  // [panels, pairs, kPanelOutputs]: two bfloat16 each, zeros past the last output
    int64_t pairs;
    int64_t outputs;
    const uint16_t *bias;  // bfloat16 [outputs], or null
    void *out;             // [rows, outputs]
    int64_t out_dtype;     // kFloat32 or kBFloat16
    int64_t threads;
};

}  // namespace kvik
