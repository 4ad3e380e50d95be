// Puts new keys and values into their slots, quantised where the cache is. Plain loops: compilers need no telling how to
// do them well on any x86-64.

#include "queries.h"

namespace kvik {

namespace {

// A value that is not finite would spoil whoever gets it with weight 0: NaN becomes 0, an infinity the largest number.
template <typename Bits, Bits kExponent, Bits kLargest, Bits kSign>
struct Finite {
    static inline Bits of(Bits bits) {
        const Bits rest = bits & static_cast<Bits>(~kSign);
        const Bits infinite = static_cast<Bits>((bits & kSign) | kLargest);
        return rest < kExponent ? bits : rest == kExponent ? infinite : Bits{0};
    }
};
using Finite16 = Finite<uint16_t, 0x7c00, 0x7bff, 0x8000>;
using FiniteB16 = Finite<uint16_t, 0x7f80, 0x7f7f, 0x8000>;
using Finite32 = Finite<uint32_t, 0x7f800000, 0x7f7fffff, 0x80000000>;

inline float float_of(uint32_t bits) {
    float number;
    __builtin_memcpy(&number, &bits, sizeof number);
    return number;
}
inline uint32_t bits_of(float number) {
    uint32_t bits;
    __builtin_memcpy(&bits, &number, sizeof bits);
    return bits;
}

// Numbers of each type as floats: NaN as 0, and none further from it than 2^120 (kvik_kernels.quantised).
inline uint32_t bounded(uint32_t bits) {
    const uint32_t rest = bits & 0x7fffffff, sign = bits & 0x80000000;
    return rest > 0x7f800000 ? 0 : rest > 0x7b800000 ? sign | 0x7b800000 : bits;
}
struct From32 {
    static inline float wide(uint32_t bits) { return float_of(bounded(bits)); }
};
struct FromB16 {
    static inline float wide(uint16_t bits) { return float_of(bounded(static_cast<uint32_t>(bits) << 16)); }
};
struct From16 {
    static inline float wide(uint16_t bits) {
        const uint32_t rest = bits & 0x7fff, sign = static_cast<uint32_t>(bits & 0x8000) << 16;
        if (rest > 0x7c00) return 0.0f;
        if (rest == 0x7c00) return float_of(sign | 0x7b800000);
        return float_of(sign | rest << 13) * 0x1p112f;  // the exponent of a half, moved to a float's
    }
};

// To the nearest whole number, halves to even: of less than 2^22.
inline float rounded(float number) {
    const float large = 0x1.8p23f;
    return (number + large) - large;
}
struct ToInt8 {
    static constexpr float kLargest = 127.0f;
    static inline uint8_t byte(float share) { return static_cast<uint8_t>(static_cast<int32_t>(rounded(share))); }
};
struct ToFloat8 {
    static constexpr float kLargest = 448.0f;
    static inline uint8_t byte(float share) {
        const uint32_t bits = bits_of(share), rest = bits & 0x7fffffff;
        const float size = float_of(rest);
        const uint32_t normal = ((rest + 0x7ffff + (rest >> 20 & 1)) >> 20) - (120 << 3);
        const uint32_t small = static_cast<uint32_t>(rounded(size * 512.0f));
        return static_cast<uint8_t>((bits >> 24 & 0x80) | (size < 0x1p-6f ? small : normal));
    }
};

// One vector and its scale, which is the smallest bfloat16 that leaves no element larger than kLargest.
template <typename Bits, typename From, typename To>
void quantise(const Bits *vector, int64_t width, void *to, uint16_t *scale) {
    uint32_t most = 0;
    for (int64_t d = 0; d < width; d++) {
        const uint32_t rest = bits_of(From::wide(vector[d])) & 0x7fffffff;
        most = rest > most ? rest : most;
    }
    const uint32_t share = (bits_of(float_of(most) / To::kLargest) + 0xffff) >> 16;
    *scale = static_cast<uint16_t>(share);
    const float divisor = share == 0 ? 1.0f : float_of(share << 16);
    uint8_t *__restrict bytes = static_cast<uint8_t *>(to);
    for (int64_t d = 0; d < width; d++) bytes[d] = To::byte(From::wide(vector[d]) / divisor);
}

// Elements as they are; what is too large becomes the largest.
template <typename Bits, typename From, typename To>
void clip(const Bits *vector, int64_t width, void *to) {
    uint8_t *__restrict bytes = static_cast<uint8_t *>(to);
    for (int64_t d = 0; d < width; d++) {
        const float x = From::wide(vector[d]);
        bytes[d] = To::byte(x > To::kLargest ? To::kLargest : x < -To::kLargest ? -To::kLargest : x);
    }
}

// One vector of four bits an element. The lowest number of a group is rounded down and its step up, both to bfloat16.
template <typename Bits, typename From>
void quantise_groups(const Bits *vector, int64_t width, void *to, uint16_t *scales) {
    uint8_t *__restrict bytes = static_cast<uint8_t *>(to);
    for (int64_t first = 0; first < width; first += kGroup, bytes += kGroup / 2, scales += 2) {
        float low = From::wide(vector[first]), high = low;
        for (int64_t d = first; d < first + kGroup; d++) {
            const float x = From::wide(vector[d]);
            low = x < low ? x : low;
            high = x > high ? x : high;
        }
        const uint32_t bits = low == 0.0f ? 0 : bits_of(low);
        const uint32_t lowest = (bits + (bits >> 31) * 0xffff) >> 16;
        const float base = float_of(lowest << 16);
        // Zero may have a sign here.
        const uint32_t step = ((bits_of((high - base) / 15.0f) & 0x7fffffff) + 0xffff) >> 16;
        const float divisor = step == 0 ? 1.0f : float_of(step << 16);
        scales[0] = static_cast<uint16_t>(step);
        scales[1] = static_cast<uint16_t>(lowest);
        for (int64_t i = 0; i < kGroup / 2; i++) {
            const float near = rounded((From::wide(vector[first + i]) - base) / divisor);
            const float far = rounded((From::wide(vector[first + kGroup / 2 + i]) - base) / divisor);
            bytes[i] = static_cast<uint8_t>(static_cast<int32_t>(near) | static_cast<int32_t>(far) << 4);
        }
    }
}

// Where the keys, or the values, of one head go.
struct Place {
    void *vectors;
    const int64_t *strides;
    uint16_t *scales;
    const int64_t *scale_strides;
    int64_t scales_of_vector;

    inline int64_t vector(int64_t block, int64_t head, int64_t offset) const {
        return block * strides[0] + head * strides[1] + offset * strides[2];
    }
    template <typename Bits>
    inline Bits *at(int64_t block, int64_t head, int64_t offset) const {
        return static_cast<Bits *>(vectors) + vector(block, head, offset);
    }
    inline uint16_t *scale(int64_t block, int64_t head, int64_t offset) const {
        return scales + block * scale_strides[0] + head * scale_strides[1] + offset * scales_of_vector;
    }
};

template <typename Bits, typename From, typename Kept>
void write_part(const Writes &all, const void *from, const int64_t *strides, int64_t dtype, const Place &place) {
    for (int64_t token = 0; token < all.tokens; token++) {
        const int64_t block = all.slots[token] / all.block_tokens, offset = all.slots[token] % all.block_tokens;
        for (int64_t head = 0; head < all.heads; head++) {
            const Bits *vector = static_cast<const Bits *>(from) + token * strides[0] + head * strides[1];
            if (dtype == kInt8) {
                quantise<Bits, From, ToInt8>(vector, all.width, place.at<uint8_t>(block, head, offset),
                                             place.scale(block, head, offset));
            } else if (dtype == kInt4) {
                quantise_groups<Bits, From>(vector, all.width, place.at<uint8_t>(block, head, offset),
                                            place.scale(block, head, offset));
            } else if (dtype == kFloat8E4M3 && !place.scales) {
                clip<Bits, From, ToFloat8>(vector, all.width, place.at<uint8_t>(block, head, offset));
            } else if (dtype == kFloat8E4M3) {
                quantise<Bits, From, ToFloat8>(vector, all.width, place.at<uint8_t>(block, head, offset),
                                               place.scale(block, head, offset));
            } else {
                Bits *__restrict to = place.at<Bits>(block, head, offset);
                for (int64_t d = 0; d < all.width; d++) to[d] = Kept::of(vector[d]);
            }
        }
    }
}

template <typename Bits>
struct AsItIs {
    static inline Bits of(Bits bits) { return bits; }
};

template <typename Bits, typename From, typename Finite>
void write_all(const Writes &all, const NewTokens &layer) {
    write_part<Bits, From, AsItIs<Bits>>(
        all, layer.key, layer.new_key_strides, all.key_dtype,
        {layer.keys, layer.key_strides, layer.key_scales, layer.key_scale_strides, scales_of(all.key_dtype, all.width)});
    write_part<Bits, From, Finite>(
        all, layer.value, layer.new_value_strides, all.value_dtype,
        {layer.values, layer.value_strides, layer.value_scales, layer.value_scale_strides,
         scales_of(all.value_dtype, all.width)});
}

}  // namespace

void write(const Writes &all, const NewTokens &layer) {
    switch (all.dtype) {
        case kFloat32: return write_all<uint32_t, From32, Finite32>(all, layer);
        case kFloat16: return write_all<uint16_t, From16, Finite16>(all, layer);
        case kBFloat16: return write_all<uint16_t, FromB16, FiniteB16>(all, layer);
    }
}

}  // namespace kvik
