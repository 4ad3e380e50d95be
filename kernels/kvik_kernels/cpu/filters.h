// What Python hands over for the filters of a draw: mirrored by kvik_kernels/cpu/structs.py.
#pragma once

#include "queries.h"

namespace kvik {

// Asks for the floor of the largest values that weigh enough together.
struct Floor {
    const float *values;  // [count]; those of -infinity have no part in it
    int64_t count;
    float *scratch;  // [count]
    double enough;   // a part of all values' mass, or so many values
    float top;       // the largest value, finite
    int32_t by_mass;
};

// Asks for the values that are at least the floor.
struct Kept {
    const float *values;    // [count]
    const int64_t *tokens;  // [count], or null: 0, 1, 2, ...
    int64_t count;
    float *kept_values;    // [count]
    int64_t *kept_tokens;  // [count]
    float floor;
};

}  // namespace kvik
