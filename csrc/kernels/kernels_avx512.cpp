// Kernels for avx512; see simd.h.
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
#if defined(SHOAL_EMULATE_AVX512)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
// Intrinsics of GCC 12 begin with vectors that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif

namespace shoal {
namespace {
#include "simd_avx512.inc"

#include "body.inc"
}  // namespace

extern const Kernels avx512_kernels{"avx512", linear, rms_norm, gated_product, rope_write, attention, add};

}  // namespace shoal

#if defined(SHOAL_EMULATE_AVX512)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
