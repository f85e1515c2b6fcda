// Kernels for avx2; see simd.h.
#include "kernels.h"

#if defined(__x86_64__)
#include "begin_avx2.inc"

namespace shoal {
namespace {
#include "simd_avx2.inc"

#include "body.inc"
}  // namespace

extern const Kernels avx2_kernels{"avx2", linear, rms_norm, gated_product, rope_write, attention, add, avx2_quantized};

}  // namespace shoal

#include "end_target.inc"
#endif
