// Kernels for avx512; see simd.h.
#include "kernels.h"

#if defined(__x86_64__)
#include "begin_avx512.inc"

namespace shoal {
namespace {
#include "simd_avx512.inc"

#include "body.inc"
}  // namespace

extern const Kernels avx512_kernels{"avx512", linear, rms_norm, gated_product, rope_write, attention, add, avx512_quantized};

}  // namespace shoal

#include "end_target.inc"
#endif
