// A call of a kernel as a value: mirrored by kvik_kernels/cpu/structs.py.
#pragma once

#include <stdint.h>

namespace kvik {

enum Kernel : int64_t { kNorm = 0, kRotate = 1, kGate = 2, kMultiply = 3, kMultiplyInt8 = 4, kWrite = 5, kAttend = 6 };

struct Call {
    int64_t kernel;
    int64_t instruction_set;
    const void *step;       // what is the same in all layers of a step: Writes or Queries; null: nothing
    const void *arguments;  // the kernel's struct
};

}  // namespace kvik
