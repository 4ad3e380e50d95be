// Which values of a row its filters keep: kvik_engine.sampling.cpu_filters says for what. This file is compiled once for
// each instruction set; KVIK_ISA names the functions that it makes.

#include "filters.h"

#include <algorithm>
#include <functional>

#include "masses.h"

namespace {

using kvik::Floor;
using kvik::Kept;

constexpr int64_t kPart = 512;    // values whose weights lie in the first-level cache
constexpr int64_t kSorted = 64;   // so few are sorted
constexpr int kSteps = 6;         // floors that one pass tries
constexpr float kLowest = -3.4028234664e38f;
constexpr float kInfinity = __builtin_inff();

// How far below the largest value the floor is looked for first.
constexpr float kLadder[kSteps] = {1, 2, 4, 7, 12, kInfinity};

// A value weighs as much as its probability.
struct Mass {
    float top;
    void of(const float *values, int64_t count, float *out) const { masses_of(values, count, top, out); }
};

// Each value weighs the same.
struct One {
    void of(const float *, int64_t count, float *out) const { std::fill(out, out + count, 1.0f); }
};

// For each floor, what the values that reach it weigh.
template <class Weight>
void weigh(const Weight &weight, const float *values, int64_t count, const float *floors, double *out) {
    alignas(64) float weights[kPart];
    for (int step = 0; step < kSteps; step++) out[step] = 0.0;
    for (int64_t first = 0; first < count; first += kPart) {
        const int64_t part = std::min(count - first, kPart);
        weight.of(values + first, part, weights);
        for (int step = 0; step < kSteps; step++) {
            Vector sum = Vector::zero();
            int64_t at = 0;
            for (; at + Vector::kLanes <= part; at += Vector::kLanes)
                sum = sum + Vector::load(weights + at).zero_where_less(Vector::load(values + first + at), floors[step]);
            float rest = sum_of_lanes(sum);
            for (; at < part; at++) rest += values[first + at] >= floors[step] ? weights[at] : 0.0f;
            out[step] += rest;
        }
    }
}

// Calls `take` with the place of each value in [low, high), by rising place.
template <class Take>
void each_within(const float *values, int64_t count, float low, float high, Take take) {
    int64_t at = 0;
    for (; at + Vector::kLanes <= count; at += Vector::kLanes) {
        const Vector some = Vector::load(values + at);
        for (unsigned inside = some.lanes_at_least(low) & ~some.lanes_at_least(high); inside; inside &= inside - 1)
            take(at + __builtin_ctz(inside));
    }
    for (; at < count; at++)
        if (values[at] >= low && !(values[at] >= high)) take(at);
}

// The floor among values of which the largest have to weigh `lacking` more than what lies above all of them.
template <class Weight>
float floor_of_sorted(const Weight &weight, float *values, int64_t count, double lacking) {
    std::sort(values, values + count, std::greater<float>());
    float floor = values[0];
    float weighs[Vector::kLanes];
    for (int64_t at = 0; at < count && lacking > 0; at++) {
        floor = values[at];
        weight.of(values + at, 1, weighs);
        lacking -= weighs[0];
    }
    return floor;
}

// The value lies between two of a few floors, then between two of a few there, until hardly any value is left.
template <class Weight>
float floor_of(const Weight &weight, const Floor &all) {
    float floors[kSteps], above = all.top;
    double weights[kSteps], lacking = all.enough;
    for (int step = 0; step < kSteps; step++) floors[step] = std::max(all.top - kLadder[step], kLowest);
    const float *values = all.values;
    int64_t count = all.count;
    weigh(weight, values, count, floors, weights);
    if (all.by_mass) lacking *= weights[kSteps - 1];
    for (;;) {
        int step = 0;
        while (step < kSteps - 1 && weights[step] < lacking) step++;
        int64_t within = 0;
        float lowest = kInfinity;
        each_within(values, count, floors[step], step > 0 ? floors[step - 1] : kInfinity, [&](int64_t at) {
            lowest = std::min(lowest, values[at]);
            all.scratch[within++] = values[at];  // never past `at`: the values may lie here
        });
        if (within == 0) return floors[step > 0 ? step - 1 : 0];  // all together weigh less, by rounding or in number
        if (step > 0) {
            lacking -= weights[step - 1];
            above = floors[step - 1];
        }
        const bool fewer = within < count;  // else nothing but sorting tells them apart
        values = all.scratch;
        count = within;
        if (count <= kSorted || !fewer) return floor_of_sorted(weight, all.scratch, count, lacking);
        for (int step = 0; step < kSteps; step++) {
            const float up = static_cast<float>(kSteps - 1 - step) / kSteps;
            floors[step] = lowest * (1 - up) + above * up;  // their difference need not be finite
        }
        weigh(weight, values, count, floors, weights);
    }
}

}  // namespace

#define KVIK_NAMED_(name, isa) name##_##isa
#define KVIK_NAMED(name, isa) KVIK_NAMED_(name, isa)

namespace kvik {

float KVIK_NAMED(floor, KVIK_ISA)(const Floor &all) {
    return all.by_mass ? floor_of(Mass{all.top}, all) : floor_of(One{}, all);
}

int64_t KVIK_NAMED(keep, KVIK_ISA)(const Kept &all) {
    int64_t kept = 0;
    each_within(all.values, all.count, all.floor, kInfinity, [&](int64_t at) {
        all.kept_values[kept] = all.values[at];
        all.kept_tokens[kept++] = all.tokens ? all.tokens[at] : at;
    });
    return kept;
}

double KVIK_NAMED(mass, KVIK_ISA)(const float *values, int64_t count, float top) {
    alignas(64) float masses[kPart];
    double total = 0.0;
    for (int64_t first = 0; first < count; first += kPart) {
        const int64_t part = std::min(count - first, kPart);
        masses_of(values + first, part, top, masses);
        Vector sum = Vector::zero();
        for (int64_t at = 0; at < part; at += Vector::kLanes) sum = sum + Vector::load(masses + at);
        total += sum_of_lanes(sum);
    }
    return total;
}

}  // namespace kvik
