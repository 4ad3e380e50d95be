// What Python hands over for the screening of a draw: mirrored by kvik_kernels/cpu/structs.py.
#pragma once

#include "queries.h"

namespace kvik {

struct Screen {
    const float *values;    // [count]
    const int64_t *tokens;  // [count], or null: 0, 1, 2, ...
    int64_t count;
    int64_t *places;  // [count]: of what passes, by rising place
    uint64_t key;
    float top;
    float factor;  // a mass times this is compared with the upper 32 bits of 1 - u
    float slack;   // of those
};

}  // namespace kvik
