// Kernels for portable; see simd.h.
#include "kernels.h"

namespace shoal {
namespace {
#include "simd_portable.inc"

#include "body.inc"
}  // namespace

extern const Kernels portable_kernels{"portable", linear, rms_norm, gated_product, rope_write, attention, add, portable_quantized};

}  // namespace shoal
