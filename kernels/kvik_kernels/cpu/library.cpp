// What the library exports, for any x86-64: which instruction sets this CPU and its system have, and the calls.

#include "calls.h"
#include "elementwise.h"
#include "filters.h"
#include "products.h"
#include "products_int8.h"
#include "queries.h"
#include "screen.h"

namespace kvik {

void attend_avx2(const Queries &all, const Layer &layer);
void attend_avx512(const Queries &all, const Layer &layer);
void attend_avx512_bf16(const Queries &all, const Layer &layer);
void multiply_avx512_bf16(const Product &all);
void multiply_avx512_vnni(const Int8Product &all);
void norm_avx2(const Norm &all);
void norm_avx512(const Norm &all);
void rotate_avx2(const Rotation &all);
void rotate_avx512(const Rotation &all);
void gate_avx2(const Gate &all);
void gate_avx512(const Gate &all);
double mass_avx2(const float *values, int64_t count, float top);
double mass_avx512(const float *values, int64_t count, float top);
float floor_avx2(const Floor &all);
float floor_avx512(const Floor &all);
int64_t keep_avx2(const Kept &all);
int64_t keep_avx512(const Kept &all);
int64_t screen_avx2(const Screen &all);
int64_t screen_avx512(const Screen &all);
void write(const Writes &all, const NewTokens &layer);
int64_t queries_that_fit(const Query *queries, int64_t count, const int32_t *tables, int64_t table_stride,
                         const Bounds &bounds);
int64_t slots_that_fit(const int64_t *slots, int64_t count, int64_t end);

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

// Whether there are AVX512's products of bytes, too.
EXPORTED int kvik_multiplies_bytes() {
    __builtin_cpu_init();
    return kvik_instruction_set() >= 2 && __builtin_cpu_supports("avx512vnni");
}

// How this library understands queries.h, in the order of sizes() in structs.py.
EXPORTED void kvik_sizes(int64_t *out) {
    const int64_t sizes[] = {sizeof(kvik::Query),  sizeof(kvik::Queries),   sizeof(kvik::Layer),
                             sizeof(kvik::Writes), sizeof(kvik::NewTokens), sizeof(kvik::Product),
                             sizeof(kvik::Norm),    sizeof(kvik::Rotation),  sizeof(kvik::Gate),
                             sizeof(kvik::Screen), sizeof(kvik::Floor),      sizeof(kvik::Kept),
                             sizeof(kvik::Int8Product), sizeof(kvik::Call),
                             kvik::kSplitTokens,   kvik::kPanelOutputs};
    for (const int64_t size : sizes) *out++ = size;
}

// How many of the first queries fit, up to one that does not.
EXPORTED int64_t kvik_queries_that_fit(const kvik::Query *queries, int64_t count, const int32_t *tables,
                                       int64_t table_stride, int64_t rows, int64_t columns, int64_t blocks,
                                       int64_t block_tokens) {
    return kvik::queries_that_fit(queries, count, tables, table_stride, {rows, columns, blocks, block_tokens});
}

// How many of the first slots lie before `end`, up to one that does not.
EXPORTED int64_t kvik_slots_that_fit(const int64_t *slots, int64_t count, int64_t end) {
    return kvik::slots_that_fit(slots, count, end);
}

EXPORTED double kvik_mass(int instruction_set, const float *values, int64_t count, float top) {
    return instruction_set == 1 ? kvik::mass_avx2(values, count, top) : kvik::mass_avx512(values, count, top);
}

EXPORTED float kvik_floor(int instruction_set, const kvik::Floor *all) {
    return instruction_set == 1 ? kvik::floor_avx2(*all) : kvik::floor_avx512(*all);
}

EXPORTED int64_t kvik_keep(int instruction_set, const kvik::Kept *all) {
    return instruction_set == 1 ? kvik::keep_avx2(*all) : kvik::keep_avx512(*all);
}

EXPORTED int64_t kvik_screen(int instruction_set, const kvik::Screen *all) {
    return instruction_set == 1 ? kvik::screen_avx2(*all) : kvik::screen_avx512(*all);
}

// Each kernel that a forward pass is made of; what it does not know of its CPU the caller has to.
EXPORTED void kvik_run(const kvik::Call *call) {
    const bool avx2 = call->instruction_set == 1;
    switch (call->kernel) {
        case kvik::kNorm: {
            const auto &all = *static_cast<const kvik::Norm *>(call->arguments);
            return avx2 ? kvik::norm_avx2(all) : kvik::norm_avx512(all);
        }
        case kvik::kRotate: {
            const auto &all = *static_cast<const kvik::Rotation *>(call->arguments);
            return avx2 ? kvik::rotate_avx2(all) : kvik::rotate_avx512(all);
        }
        case kvik::kGate: {
            const auto &all = *static_cast<const kvik::Gate *>(call->arguments);
            return avx2 ? kvik::gate_avx2(all) : kvik::gate_avx512(all);
        }
        case kvik::kMultiply: return kvik::multiply_avx512_bf16(*static_cast<const kvik::Product *>(call->arguments));
        case kvik::kMultiplyInt8:
            return kvik::multiply_avx512_vnni(*static_cast<const kvik::Int8Product *>(call->arguments));
        case kvik::kWrite:
            return kvik::write(*static_cast<const kvik::Writes *>(call->step),
                               *static_cast<const kvik::NewTokens *>(call->arguments));
        case kvik::kAttend: {
            const auto &all = *static_cast<const kvik::Queries *>(call->step);
            const auto &layer = *static_cast<const kvik::Layer *>(call->arguments);
            if (avx2) return kvik::attend_avx2(all, layer);
            return call->instruction_set == 2 ? kvik::attend_avx512(all, layer) : kvik::attend_avx512_bf16(all, layer);
        }
    }
}

EXPORTED void kvik_run_all(const kvik::Call *calls, int64_t count) {
    for (int64_t index = 0; index < count; index++) kvik_run(calls + index);
}
