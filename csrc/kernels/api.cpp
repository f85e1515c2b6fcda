#include <new>

#include "ffn.h"
#include "fused_layers.h"

namespace shoal {
namespace {

const Kernels* kernels_of(int isa) {
#if defined(__x86_64__)
    constexpr const Kernels* ALL[] = {&portable_kernels, &avx2_kernels, &avx512_kernels};
#else
    constexpr const Kernels* ALL[] = {&portable_kernels};
#endif
    return isa >= 0 && isa < static_cast<int>(sizeof ALL / sizeof *ALL) ? ALL[isa] : nullptr;
}

// `run` on as many threads of the pool.
template <class F>
int with_threads(int threads, F run) noexcept {
    try {
        set_threads(threads);
        return run();
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

template <class Arguments>
int call(int threads, void (*kernel)(const Arguments&), const Arguments* a) noexcept {
    return with_threads(threads, [=] { return kernel(*a), 0; });
}

}  // namespace

extern "C" {

const char* shoal_interface() { return INTERFACE; }

const char* shoal_isa_name(int isa) {
    const Kernels* kernels = kernels_of(isa);
    return kernels ? kernels->name : nullptr;
}

int shoal_isa_runs(int isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (isa) {
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
    return isa == 0;
#endif
}

int shoal_pool_threads() { return pool_threads(); }

int shoal_linear(int isa, int threads, const Linear* a) { return call(threads, kernels_of(isa)->linear, a); }
int shoal_quantized_linear(int isa, int threads, const QuantizedLinear* a) {
    return call(threads, kernels_of(isa)->quantized.linear, a);
}
int shoal_quantized_experts(int isa, int threads, const QuantizedExperts* a) {
    return call(threads, kernels_of(isa)->quantized.experts, a);
}
int shoal_quantized_rows(int, int threads, const QuantizedRows* a) { return call(threads, quantized_rows, a); }
int shoal_rms_norm(int isa, int threads, const RmsNorm* a) { return call(threads, kernels_of(isa)->rms_norm, a); }
int shoal_gated_product(int isa, int threads, const GatedProduct* a) {
    return call(threads, kernels_of(isa)->gated_product, a);
}
int shoal_rope_write(int isa, int threads, const RopeWrite* a) { return call(threads, kernels_of(isa)->rope_write, a); }
int shoal_attention(int isa, int threads, const Attention* a) { return call(threads, kernels_of(isa)->attention, a); }

int shoal_experts(int isa, int threads, const Experts* a) {
    return with_threads(threads, [=] {
        const Rows step{*kernels_of(isa), a->rows, a->hidden, a->dtype};
        Scratch<char> work;
        run_ffn(step, *a->ffn, a->x, a->out, work.take(static_cast<std::size_t>(ffn_bytes(step, *a->ffn))));
        return 0;
    });
}

int shoal_fused_layers(int isa, int threads, const FusedStep* a) {
    return with_threads(threads, [=] {
        const int missing = run_fused_layers(*kernels_of(isa), *a);
        return missing < 0 ? 0 : 2 + missing;
    });
}

std::int64_t shoal_fused_layers_bytes(int isa, int, const FusedStep* a) { return fused_layers_bytes(*kernels_of(isa), *a); }

std::int64_t shoal_quantized_peak(int isa, int threads, std::int64_t steps) {
    set_threads(threads);
    return kernels_of(isa)->quantized.peak(steps);
}

}  // extern "C"
}  // namespace shoal
