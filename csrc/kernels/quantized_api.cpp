// The C interface of the products with quantized weights. `kind` is an index as in api.cpp; results likewise.
#include <new>

#include "quantized.h"

namespace {

// AVX-512 runs the 256-bit kernels: it has no others of these.
const shoal::QuantizedKernels& kernels_of(int kind) {
#if defined(__x86_64__)
    if (kind >= 1) return shoal::avx2_quantized;
#endif
    (void)kind;
    return shoal::portable_quantized;
}

template <class Arguments>
int call(void (*kernel)(const Arguments&), const Arguments* arguments) noexcept {
    try {
        kernel(*arguments);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace

extern "C" {

int shoal_quantized_linear(int kind, const shoal::QuantizedLinear* a) { return call(kernels_of(kind).linear, a); }
int shoal_quantized_experts(int kind, const shoal::QuantizedExperts* a) { return call(kernels_of(kind).experts, a); }
std::int64_t shoal_quantized_peak(int kind, std::int64_t steps) { return kernels_of(kind).peak(steps); }

}  // extern "C"
