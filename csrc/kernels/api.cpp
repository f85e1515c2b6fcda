// The C interface. `kind` is an index into the processor kinds below; results are 0, or 1 for want of memory.
#include <new>

#include "kernels.h"
#include "pool.h"
#include "quantized.h"
#include "scratch.h"
#include "stack.h"

namespace {

using shoal::Kernels;

// Best last.
const Kernels* kernels_of(int kind) {
#if defined(__x86_64__)
    constexpr const Kernels* ALL[] = {&shoal::portable_kernels, &shoal::avx2_kernels, &shoal::avx512_kernels};
#else
    constexpr const Kernels* ALL[] = {&shoal::portable_kernels};
#endif
    return kind >= 0 && kind < static_cast<int>(sizeof ALL / sizeof *ALL) ? ALL[kind] : nullptr;
}

const shoal::QuantizedKernels& quantized_of(int kind) {
#if defined(__x86_64__)
    if (kind == 2) return shoal::avx512_quantized;
    if (kind == 1) return shoal::avx2_quantized;
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

// Changes whenever a struct of kernels.h or a function of this file does.
int shoal_kernels_version() { return 7; }

// Null beyond the last kind.
const char* shoal_kernels_name(int kind) {
    const Kernels* kernels = kernels_of(kind);
    return kernels ? kernels->name : nullptr;
}

// Whether this processor runs a kind.
int shoal_kernels_run(int kind) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (kind) {
        case 0:
            return 1;
        case 1:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case 2:
#if defined(SHOAL_EMULATE_AVX512)
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni");
#endif
        default:
            return 0;
    }
#else
    return kind == 0;
#endif
}

void shoal_pool(int threads, long spin_ns) { shoal::set_pool(threads, spin_ns); }
int shoal_pool_threads() { return shoal::pool_threads(); }

int shoal_linear(int kind, const shoal::Linear* a) { return call(kernels_of(kind)->linear, a); }
int shoal_rms_norm(int kind, const shoal::RmsNorm* a) { return call(kernels_of(kind)->rms_norm, a); }
int shoal_gated_product(int kind, const shoal::GatedProduct* a) { return call(kernels_of(kind)->gated_product, a); }
int shoal_rope_write(int kind, const shoal::RopeWrite* a) { return call(kernels_of(kind)->rope_write, a); }
int shoal_attention(int kind, const shoal::Attention* a) { return call(kernels_of(kind)->attention, a); }
int shoal_add(int kind, const shoal::Sum* a) { return call(kernels_of(kind)->add, a); }
int shoal_quantized_linear(int kind, const shoal::QuantizedLinear* a) { return call(quantized_of(kind).linear, a); }
int shoal_quantized_experts(int kind, const shoal::QuantizedExperts* a) { return call(quantized_of(kind).experts, a); }
void shoal_quantized_rows(const shoal::QuantizedRows* a) { shoal::quantized_rows(*a); }
std::int64_t shoal_quantized_peak(int kind, std::int64_t steps) { return quantized_of(kind).peak(steps); }

// x [rows, hidden] -> out [rows, hidden]
int shoal_experts(int kind, const shoal::ExpertsFfn* ffn, void* x, void* out, std::int64_t rows, std::int64_t hidden,
                  std::int32_t type) {
    try {
        const shoal::Rows step{*kernels_of(kind), quantized_of(kind), rows, hidden, static_cast<shoal::Type>(type)};
        shoal::Scratch<char> work;
        shoal::feed(step, *ffn, x, out, work.take(static_cast<std::size_t>(shoal::feed_work(step, *ffn))));
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

long long shoal_stack_work(int kind, const shoal::Stack* stack) {
    return shoal::stack_work(*kernels_of(kind), quantized_of(kind), *stack);
}
// `sums`: as one rank of several; null: alone. 2 + the index of a rank that did not come.
int shoal_stack(int kind, const shoal::Stack* stack, const shoal::Sums* sums) {
    try {
        const int missing = shoal::run_stack(*kernels_of(kind), quantized_of(kind), *stack, sums);
        return missing < 0 ? 0 : 2 + missing;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // extern "C"
