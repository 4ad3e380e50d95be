// What probabilities are computed from.
#pragma once

#include "arithmetic.h"

namespace {

// e^(value - top) of `count` values; what lies past the last one, up to a whole vector, is 0.
inline void masses_of(const float *values, int64_t count, float top, float *out) {
    int64_t at = 0;
    for (; at + Vector::kLanes <= count; at += Vector::kLanes)
        exponential(Vector::load(values + at) - Vector::all(top)).store(out + at);
    if (at < count) {
        float rest[Vector::kLanes];
        for (int lane = 0; lane < Vector::kLanes; lane++)
            rest[lane] = at + lane < count ? values[at + lane] : -__builtin_inff();
        exponential(Vector::load(rest) - Vector::all(top)).store(out + at);
    }
}

}  // namespace
