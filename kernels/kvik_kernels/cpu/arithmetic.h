// What kernels compute of vectors, for whichever instruction set the file is compiled for.
#pragma once

#ifdef __AVX512F__
#include "vectors_avx512.h"
#else
#include "vectors_avx2.h"
#endif

namespace {

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

}  // namespace
