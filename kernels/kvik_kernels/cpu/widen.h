// Keys and values of four bits an element, as floats. A split of a query's past is widened at once and then attended to
// as any other: in the CPU's nearest cache, where writing and reading it again costs less than reading it from afar.
#pragma once

#include "queries.h"

namespace {

inline float wide_bfloat(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float number;
    __builtin_memcpy(&number, &wide, sizeof number);
    return number;
}

// One vector, with its steps and lowest numbers.
inline void widen(const uint8_t *bytes, const uint16_t *scales, int64_t width, float *__restrict out) {
    constexpr int64_t kHalf = kvik::kGroup / 2;
    for (int64_t first = 0; first < width; first += kvik::kGroup, bytes += kHalf, scales += 2) {
        const float step = wide_bfloat(scales[0]), lowest = wide_bfloat(scales[1]);
        for (int64_t i = 0; i < kHalf; i++) out[first + i] = static_cast<float>(bytes[i] & 15) * step + lowest;
        for (int64_t i = 0; i < kHalf; i++) out[first + kHalf + i] = static_cast<float>(bytes[i] >> 4) * step + lowest;
    }
}

}  // namespace
