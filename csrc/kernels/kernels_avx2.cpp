// Kernels for avx2; see simd.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "scratch.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace shoal {
namespace {
#include "simd_avx2.inc"

#include "body.inc"
}  // namespace

extern const Kernels avx2_kernels{"avx2", linear, rms_norm, gated_product, rope_write, attention, add};

}  // namespace shoal

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
