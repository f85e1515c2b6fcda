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
#include "begin_avx512.inc"

namespace shoal {
namespace {
#include "simd_avx512.inc"

#include "body.inc"
}  // namespace

extern const Kernels avx512_kernels{"avx512", linear, rms_norm, gated_product, rope_write, attention, add};

}  // namespace shoal

#include "end_target.inc"
#endif
