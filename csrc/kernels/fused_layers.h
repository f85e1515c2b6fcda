// A step through many layers in one call.
#pragma once

#include "kernels.h"

namespace shoal {

// Bytes that a step of that many rows works in.
std::int64_t fused_layers_bytes(const Kernels& kernels, const FusedStep& step);
// -1, or the index of the rank that did not come.
int run_fused_layers(const Kernels& kernels, const FusedStep& step);

}  // namespace shoal
