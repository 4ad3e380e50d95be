// Which tokens can win a draw, from the upper bits of their noise: kvik_engine.sampling.cpu_screen says why that is
// enough. This file is compiled once for each instruction set; KVIK_ISA names the functions that it makes.

#include "screen.h"

#include "arithmetic.h"

namespace {

using kvik::Screen;

constexpr int64_t kPart = 512;  // tokens whose masses and bits lie in the first-level cache

constexpr int64_t kTogether = 64;

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;
constexpr uint64_t kMix1 = 0xBF58476D1CE4E5B9;
constexpr uint64_t kMix2 = 0x94D049BB133111EB;

// e^(value - top) of up to kPart values; those past the last one are 0.
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

// The upper 32 bits of 1 - u of SplitMix64's outputs: by -kMix2 where kMix2 gives u. Its last step changes none of them.
inline void upper_bits(const Screen &all, int64_t first, int64_t count, uint32_t *out) {
    for (int64_t index = 0; index < count; index++) {
        const uint64_t token = static_cast<uint64_t>(all.tokens ? all.tokens[first + index] : first + index);
        uint64_t state = (token + 1) * kGamma + all.key;
        state = (state ^ (state >> 30)) * kMix1;
        state = (state ^ (state >> 27)) * (0 - kMix2);
        out[index] = static_cast<uint32_t>(state >> 32);
    }
}

inline int passes(const Screen &all, float mass, uint32_t bits) {
    return static_cast<float>(bits) <= mass * all.factor + all.slack;
}

}  // namespace

#define KVIK_NAMED_(name, isa) name##_##isa
#define KVIK_NAMED(name, isa) KVIK_NAMED_(name, isa)

namespace kvik {

void KVIK_NAMED(masses, KVIK_ISA)(const float *values, int64_t count, float top, const float *floors, int64_t steps,
                                  double *out) {
    alignas(64) float masses[kPart];
    for (int64_t step = 0; step < steps; step++) out[step] = 0.0;
    for (int64_t first = 0; first < count; first += kPart) {
        const int64_t part = count - first < kPart ? count - first : kPart;
        masses_of(values + first, part, top, masses);
        for (int64_t step = 0; step < steps; step++) {
            Vector sum = Vector::zero();
            int64_t at = 0;
            for (; at + Vector::kLanes <= part; at += Vector::kLanes)
                sum = sum + Vector::load(masses + at).zero_where_less(Vector::load(values + first + at), floors[step]);
            float rest = sum_of_lanes(sum);
            for (; at < part; at++) rest += values[first + at] >= floors[step] ? masses[at] : 0.0f;
            out[step] += rest;
        }
    }
}

int64_t KVIK_NAMED(screen, KVIK_ISA)(const Screen &all) {
    alignas(64) float masses[kPart];
    alignas(64) uint32_t bits[kPart];
    int64_t found = 0;
    for (int64_t first = 0; first < all.count; first += kPart) {
        const int64_t part = all.count - first < kPart ? all.count - first : kPart;
        masses_of(all.values + first, part, all.top, masses);
        upper_bits(all, first, part, bits);
        for (int64_t at = 0; at < part; at += kTogether) {
            const int64_t end = at + kTogether < part ? at + kTogether : part;
            // Hardly any pass: most are done with in a few vectors.
            int passing = 0;
            for (int64_t index = at; index < end; index++) passing |= passes(all, masses[index], bits[index]);
            if (!passing) continue;
            for (int64_t index = at; index < end; index++)
                if (passes(all, masses[index], bits[index])) all.places[found++] = first + index;
        }
    }
    return found;
}

}  // namespace kvik
