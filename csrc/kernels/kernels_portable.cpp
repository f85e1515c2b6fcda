// Kernels for portable; see simd.h.
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

namespace shoal {
namespace {
#include "simd_portable.inc"

#include "body.inc"
}  // namespace

extern const Kernels portable_kernels{"portable", linear, rms_norm, gated_product, rope_write, attention, add};

}  // namespace shoal
