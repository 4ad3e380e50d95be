// What the library exports, for any x86-64: which instruction sets this CPU and its system have, and the calls.

#include "queries.h"

namespace kvik {

void attend_avx2(const Queries &all, const Layer &layer);
void attend_avx512(const Queries &all, const Layer &layer);
void attend_avx512_bf16(const Queries &all, const Layer &layer);
void write(const Writes &all, const NewTokens &layer);

}  // namespace kvik

#define EXPORTED extern "C" __attribute__((visibility("default")))

// 0: none of them, 1: AVX2, 2: AVX512, 3: AVX512 with products of bf16; each has the ones before it.
EXPORTED int kvik_instruction_set() {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!avx2) return 0;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!avx512) return 1;
    return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
}

EXPORTED void kvik_write(const kvik::Writes *all, const kvik::NewTokens *layer) { kvik::write(*all, *layer); }

EXPORTED void kvik_attend(int instruction_set, const kvik::Queries *all, const kvik::Layer *layer) {
    switch (instruction_set) {
        case 1: return kvik::attend_avx2(*all, *layer);
        case 2: return kvik::attend_avx512(*all, *layer);
        case 3: return kvik::attend_avx512_bf16(*all, *layer);
    }
}
