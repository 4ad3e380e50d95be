// What a layer does between its products. This file is compiled once for each instruction set; KVIK_ISA names its
// functions. Everything else here is private to the file, as in attention.cpp.

#include "elementwise.h"

#include "arithmetic.h"
#include "crew.h"

namespace {

using kvik::Gate;
using kvik::Norm;
using kvik::Rotation;

// sum(x^2), of each row in the same order whatever the other rows are.
inline float sum_of_squares(const float *x, int64_t width) {
    Vector sum = Vector::zero();
    for (int64_t d = 0; d < width; d += Vector::kLanes) {
        const Vector part = Vector::load(x + d);
        sum = sum.plus_product(part, part);
    }
    return sum_of_lanes(sum);
}

template <typename T>
void norm_row(const Norm &all, int64_t row) {
    float *x = all.x + row * all.width;
    if (all.addend) {
        const T *addend = static_cast<const T *>(all.addend) + row * all.width;
        for (int64_t d = 0; d < all.width; d += Vector::kLanes)
            (Vector::load(x + d) + Vector::load(addend + d)).store(x + d);
    }
    T *out = static_cast<T *>(all.out) + row * all.width;
    const float mean = sum_of_squares(x, all.width) / static_cast<float>(all.width);
    const Vector scale = Vector::all(1.0f / __builtin_sqrtf(mean + all.epsilon));
    for (int64_t d = 0; d < all.width; d += Vector::kLanes)
        (Vector::load(x + d) * scale * Vector::load(all.weight + d)).store(out + d);
}

// One token: all its heads, each in place.
template <typename T>
void rotate_token(const Rotation &all, int64_t token) {
    const float *cos = all.cos + token * all.half, *sin = all.sin + token * all.half;
    for (int64_t head = 0; head < all.heads; head++) {
        T *first = static_cast<T *>(all.x) + token * all.token_stride + head * all.head_stride, *second = first + all.half;
        for (int64_t d = 0; d < all.half; d += Vector::kLanes) {
            const Vector a = Vector::load(first + d), b = Vector::load(second + d);
            const Vector c = Vector::load(cos + d), s = Vector::load(sin + d);
            (a * c - b * s).store(first + d);
            (b * c + a * s).store(second + d);
        }
    }
}

// 1 / (1 + e^-x): by e^-|x|, which overflows for no x.
inline Vector sigmoid(Vector x) {
    const Vector small = exponential(Vector::zero() - x.magnitude());
    const Vector one = Vector::all(1.0f), share = one / (one + small);
    return share.or_where_negative(x, small * share);
}

inline Vector activated(Vector x, int64_t activation) {
    if (activation == kvik::kSilu) return x * sigmoid(x);
    // The tanh approximation of GELU (arXiv 1606.08415), by (1 + tanh(u)) / 2 = sigmoid(2u).
    const Vector cubic = x * x * x * Vector::all(0.044715f);
    return x * sigmoid((x + cubic) * Vector::all(1.5957691216057308f));
}

// The gate is rounded as the products of layers are, before it is multiplied.
template <typename T>
void gate_row(const Gate &all, int64_t row) {
    const T *gate = static_cast<const T *>(all.gate_up) + row * 2 * all.width, *up = gate + all.width;
    T *out = static_cast<T *>(all.out) + row * all.width;
    for (int64_t d = 0; d < all.width; d += Vector::kLanes) {
        activated(Vector::load(gate + d), all.activation).store(out + d);
        (Vector::load(out + d) * Vector::load(up + d)).store(out + d);
    }
}

template <typename Call>
void each_row(const Call &all, void (*row)(const Call &, int64_t)) {
    constexpr int64_t kRows = 8;  // taken at once
    share_out(all.threads, (all.rows + kRows - 1) / kRows, [&](int64_t item) {
        const int64_t end = (item + 1) * kRows < all.rows ? (item + 1) * kRows : all.rows;
        for (int64_t index = item * kRows; index < end; index++) row(all, index);
    });
}

}  // namespace

#define KVIK_NAMED_(name, isa) name##_##isa
#define KVIK_NAMED(name, isa) KVIK_NAMED_(name, isa)

namespace kvik {

void KVIK_NAMED(norm, KVIK_ISA)(const Norm &all) {
    switch (all.dtype) {
        case kFloat32: return each_row(all, norm_row<float>);
        case kFloat16: return each_row(all, norm_row<Half>);
        default: return each_row(all, norm_row<BFloat>);
    }
}

void KVIK_NAMED(rotate, KVIK_ISA)(const Rotation &all) {
    switch (all.dtype) {
        case kFloat32: return each_row(all, rotate_token<float>);
        case kFloat16: return each_row(all, rotate_token<Half>);
        default: return each_row(all, rotate_token<BFloat>);
    }
}

void KVIK_NAMED(gate, KVIK_ISA)(const Gate &all) {
    switch (all.dtype) {
        case kFloat32: return each_row(all, gate_row<float>);
        case kFloat16: return each_row(all, gate_row<Half>);
        default: return each_row(all, gate_row<BFloat>);
    }
}

}  // namespace kvik
