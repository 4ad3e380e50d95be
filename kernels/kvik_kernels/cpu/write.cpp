// Puts new keys and values into their slots. A copy: compilers need no telling how to do it well on any x86-64.

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

template <typename Bits, typename Finite>
void write_all(const Writes &all, const NewTokens &layer) {
    for (int64_t token = 0; token < all.tokens; token++) {
        const int64_t block = all.slots[token] / all.block_tokens, offset = all.slots[token] % all.block_tokens;
        for (int64_t head = 0; head < all.heads; head++) {
            const Bits *key = static_cast<const Bits *>(layer.key) + token * layer.new_key_strides[0] +
                              head * layer.new_key_strides[1];
            const Bits *value = static_cast<const Bits *>(layer.value) + token * layer.new_value_strides[0] +
                                head * layer.new_value_strides[1];
            Bits *__restrict to_key = static_cast<Bits *>(layer.keys) + block * layer.key_strides[0] +
                                      head * layer.key_strides[1] + offset * layer.key_strides[2];
            Bits *__restrict to_value = static_cast<Bits *>(layer.values) + block * layer.value_strides[0] +
                                        head * layer.value_strides[1] + offset * layer.value_strides[2];
            for (int64_t d = 0; d < all.width; d++) to_key[d] = key[d];
            for (int64_t d = 0; d < all.width; d++) to_value[d] = Finite::of(value[d]);
        }
    }
}

}  // namespace

void write(const Writes &all, const NewTokens &layer) {
    switch (all.dtype) {
        case kFloat32: return write_all<uint32_t, Finite32>(all, layer);
        case kFloat16: return write_all<uint16_t, Finite16>(all, layer);
        case kBFloat16: return write_all<uint16_t, FiniteB16>(all, layer);
    }
}

}  // namespace kvik
