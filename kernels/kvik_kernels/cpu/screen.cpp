// Which tokens can win a draw, from the upper bits of their noise: kvik_engine.sampling.cpu_screen says why that is
// enough. This file is compiled once for each instruction set; KVIK_ISA names the functions that it makes.

#include "screen.h"

#include "masses.h"

namespace {

using kvik::Screen;

constexpr int64_t kPart = 512;  // tokens whose masses and bits lie in the first-level cache
constexpr int64_t kTogether = 64;

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;
constexpr uint64_t kMix1 = 0xBF58476D1CE4E5B9;
constexpr uint64_t kMix2 = 0x94D049BB133111EB;

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
