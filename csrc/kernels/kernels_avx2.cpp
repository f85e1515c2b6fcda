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
#include "begin_avx2.inc"

namespace shoal {
namespace {
#include "simd_avx2.inc"

#include "body.inc"
}  // namespace

extern const Kernels avx2_kernels{"avx2", linear, rms_norm, gated_product, rope_write, attention, add};

}  // namespace shoal

#include "end_target.inc"
#endif
