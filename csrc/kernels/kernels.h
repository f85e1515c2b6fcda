// The table of kernels of one instruction set, and what its sources are made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "interface.h"
#include "pool.h"
#include "scratch.h"
#include "simd.h"

namespace shoal {

// out = x + add
struct Sum {
    const void* x;
    const void* add;
    void* out;
    std::int64_t count;
    DType dtype;
};

// See quantized.h.
struct QuantizedKernels {
    void (*linear)(const QuantizedLinear&);
    void (*experts)(const QuantizedExperts&);
    std::int64_t (*peak)(std::int64_t steps);
};

struct Kernels {
    const char* name;
    void (*linear)(const Linear&);
    void (*rms_norm)(const RmsNorm&);
    void (*gated_product)(const GatedProduct&);
    void (*rope_write)(const RopeWrite&);
    void (*attention)(const Attention&);
    void (*add)(const Sum&);
    const QuantizedKernels& quantized;
};

extern const QuantizedKernels portable_quantized, avx2_quantized, avx512_quantized;
extern const Kernels portable_kernels, avx2_kernels, avx512_kernels;

void quantized_rows(const QuantizedRows& a);

}  // namespace shoal
