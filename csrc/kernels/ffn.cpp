#include "ffn.h"

#include "router.h"
#include "scratch_arena.h"

namespace shoal {
namespace {

// Whether the gate is applied by the second product, as it rounds its rows.
bool gates_within(const GatedFfn& ffn) { return ffn.down.scheme != DENSE && ffn.gate != SWIGLU_OAI; }
Prologue prologue_of(const GatedFfn& ffn) {
    return !gates_within(ffn) ? AS_IS : ffn.gate == SILU ? SILU_MUL : GELU_TANH_MUL;
}

struct GatedScratch {
    char *gate_up, *inner;

    GatedScratch(ScratchArena& arena, const Rows& step, const GatedFfn& ffn)
        : gate_up(arena.bytes(step.rows * ffn.gate_up.outputs * step.bytes())),
          inner(arena.bytes(gates_within(ffn) ? 0 : step.rows * ffn.down.inputs * step.bytes())) {}
};

struct ExpertScratch {
    float *wide, *logits;  // rows where they are no fp32, [rows, experts]
    Rows routed;  // every row once for each of its experts
    Routing routing;
    char* sorted;  // [routed.rows, hidden]: expert by expert, then what was computed of them
    GatedScratch inner;
    char *shared_out, *shared_gates;  // [rows, hidden], [rows]
    GatedScratch shared;

    ExpertScratch(ScratchArena& arena, const Rows& step, const ExpertsFfn& ffn)
        : wide(arena.take<float>(step.dtype == FLOAT32 ? 0 : step.rows * step.hidden)),
          logits(arena.take<float>(step.rows * ffn.router.experts)),
          routed{step.kernels, step.rows * ffn.router.top_k, step.hidden, step.dtype},
          routing{arena.take<float>(routed.rows), arena.take<std::int32_t>(routed.rows),
                  arena.take<std::int64_t>(routed.rows), arena.take<std::int64_t>(ffn.router.experts)},
          sorted(arena.bytes(routed.rows * step.hidden * step.bytes())),
          inner(arena, routed, ffn.routed),
          shared_out(arena.bytes(ffn.shared.gate_up.w ? step.rows * step.hidden * step.bytes() : 0)),
          shared_gates(arena.bytes(ffn.shared_gate.w ? step.rows * step.bytes() : 0)),
          shared(arena, step, ffn.shared) {}
};

void gate(const Rows& step, const GatedFfn& ffn, const GatedScratch& at) {
    if (gates_within(ffn)) return;
    step.kernels.gated_product({.gate_up = at.gate_up, .out = at.inner, .rows = step.rows, .width = ffn.down.inputs,
                                .stride = ffn.gate_up.outputs, .gate = ffn.gate, .dtype = step.dtype,
                                .limit = ffn.limit, .alpha = ffn.alpha});
}

QuantizedLinear quantized(const Rows& step, const Matrix& weight, void* x, void* y, Prologue prologue, const Norm& norm) {
    const bool halves = prologue == SILU_MUL || prologue == GELU_TANH_MUL;
    return {.x = x, .y = y, .weight = weight, .norm = norm, .rows = step.rows,
            .x_stride = halves ? 2 * weight.inputs : weight.inputs, .y_stride = weight.outputs, .prologue = prologue,
            .dtype = step.dtype};
}

// What follows the first product.
void gate_and_down(const Rows& step, const GatedFfn& ffn, void* out, const GatedScratch& at) {
    gate(step, ffn, at);
    step.product(ffn.down, gates_within(ffn) ? at.gate_up : at.inner, out, prologue_of(ffn));
}

// Products of rows that lie expert by expert; `bytes` and `scales_bytes` lie between one expert's weights and the next's.
void product_of_each(const Rows& step, const Matrix& first, std::int64_t bytes, std::int64_t scales_bytes,
                     const Router& router, const std::int64_t* counts, char* x, char* y, Prologue prologue) {
    if (first.scheme != DENSE) {
        const QuantizedLinear all = quantized(step, first, x, y, prologue, {});
        step.kernels.quantized.experts({all, counts, router.experts, bytes, scales_bytes});
        return;
    }
    const std::int64_t size = step.bytes();
    for (std::int64_t e = 0; e < router.experts; ++e) {
        Matrix of = first;
        of.w = static_cast<const char*>(first.w) + e * bytes;
        if (first.bias) of.bias = static_cast<const char*>(first.bias) + e * first.outputs * size;
        if (counts[e]) Rows{step.kernels, counts[e], step.hidden, step.dtype}.product(of, x, y);
        x += counts[e] * of.inputs * size;
        y += counts[e] * of.outputs * size;
    }
}

template <class T>
void route_rows(const Rows& step, const Router& router, T* x, const ExpertScratch& at) {
    float* wide = at.wide;
    if constexpr (std::is_same_v<T, float>) {
        wide = x;
    } else {
        std::transform(x, x + step.rows * step.hidden, wide, [](T number) { return widen(number); });
    }
    const Matrix weight{router.weight, nullptr, router.bias, step.hidden, router.experts, DENSE};
    step.kernels.linear({wide, at.logits, weight, step.rows, step.hidden, router.experts, FLOAT32});
    route(router, at.logits, step.rows, at.routing);
}

// out [rows, hidden] = Σ weight · computed over a row's experts in the order of its choice, in fp32, plus what the
// shared experts made.
template <class T>
void combine(const Rows& step, const ExpertsFfn& ffn, const ExpertScratch& p, T* out) {
    constexpr std::int64_t AT_ONCE = 512;
    const T* computed = reinterpret_cast<const T*>(p.sorted);
    const T* shared = ffn.shared.gate_up.w ? reinterpret_cast<const T*>(p.shared_out) : nullptr;
    const T* gates = ffn.shared_gate.w ? reinterpret_cast<const T*>(p.shared_gates) : nullptr;
    const std::int64_t top_k = ffn.router.top_k;
    each_row(step.rows, step.hidden * (top_k + 1), [&](std::int64_t row) {
        T by{};
        if (gates) narrow(sigmoid(widen(gates[row])), &by);
        for (std::int64_t begin = 0; begin < step.hidden; begin += AT_ONCE) {
            const std::int64_t count = std::min(AT_ONCE, step.hidden - begin), first = row * step.hidden + begin;
            float sums[AT_ONCE] = {};
            for (std::int64_t i = row * top_k; i < (row + 1) * top_k; ++i) {
                const T* from = computed + p.routing.at[i] * step.hidden + begin;
                for (std::int64_t c = 0; c < count; ++c) sums[c] += p.routing.weights[i] * widen(from[c]);
            }
            for (std::int64_t c = 0; c < count; ++c) narrow(sums[c], out + first + c);
            for (std::int64_t c = first; shared && c < first + count; ++c) {
                T scaled = shared[c];
                if (gates) narrow(widen(by) * widen(scaled), &scaled);
                narrow(widen(out[c]) + widen(scaled), out + c);
            }
        }
    });
}

template <class T>
void run_experts(const Rows& step, const ExpertsFfn& ffn, T* x, T* out, const ExpertScratch& at) {
    const Router& router = ffn.router;
    route_rows(step, router, x, at);
    each_row(step.rows, step.hidden * (router.top_k + 1), [&](std::int64_t row) {
        for (std::int64_t i = row * router.top_k; i < (row + 1) * router.top_k; ++i) {
            T* to = reinterpret_cast<T*>(at.sorted) + at.routing.at[i] * step.hidden;
            std::copy_n(x + row * step.hidden, step.hidden, to);
        }
    });
    const GatedFfn& first = ffn.routed;
    product_of_each(at.routed, first.gate_up, ffn.gate_up_bytes, ffn.gate_up_scales_bytes, router, at.routing.counts,
                    at.sorted, at.inner.gate_up, AS_IS);
    gate(at.routed, first, at.inner);
    product_of_each(at.routed, first.down, ffn.down_bytes, ffn.down_scales_bytes, router, at.routing.counts,
                    gates_within(first) ? at.inner.gate_up : at.inner.inner, at.sorted, prologue_of(first));
    if (ffn.shared.gate_up.w) {
        step.product(ffn.shared.gate_up, x, at.shared.gate_up);
        gate_and_down(step, ffn.shared, at.shared_out, at.shared);
    }
    if (ffn.shared_gate.w) step.product(ffn.shared_gate, x, at.shared_gates);
    combine(step, ffn, at, out);
}

}  // namespace

void Rows::product(const Matrix& weight, void* x, void* y, Prologue prologue) const {
    if (weight.scheme != DENSE) {
        kernels.quantized.linear(quantized(*this, weight, x, y, prologue, {}));
    } else {
        kernels.linear({x, y, weight, rows, weight.inputs, weight.outputs, dtype});
    }
}

void Rows::norm(const Norm& norm, void* x, void* out) const {
    kernels.rms_norm({.x = x, .add = norm.add, .weight = norm.weight, .out = out, .rows = rows, .width = hidden,
                      .x_stride = hidden, .add_stride = hidden, .out_stride = hidden, .eps = norm.eps, .dtype = dtype,
                      .weight_dtype = norm.dtype});
}

void Rows::product_of_normed(const Matrix& weight, const Norm& norm, void* x, void* normed, void* y) const {
    if (weight.scheme != DENSE) return kernels.quantized.linear(quantized(*this, weight, x, y, NORMED, norm));
    this->norm(norm, x, normed);
    product(weight, normed, y);
}

void run_ffn(const Rows& step, const GatedFfn& ffn, const Norm& norm, void* x, void* normed, void* out, char* work) {
    ScratchArena arena(work);
    const GatedScratch at(arena, step, ffn);
    step.product_of_normed(ffn.gate_up, norm, x, normed, at.gate_up);
    gate_and_down(step, ffn, out, at);
}

void run_ffn(const Rows& step, const ExpertsFfn& ffn, void* x, void* out, char* work) {
    ScratchArena arena(work);
    const ExpertScratch at(arena, step, ffn);
    if (step.dtype == FLOAT32) {
        run_experts(step, ffn, static_cast<float*>(x), static_cast<float*>(out), at);
    } else {
        run_experts(step, ffn, static_cast<bf16*>(x), static_cast<bf16*>(out), at);
    }
}

std::int64_t ffn_bytes(const Rows& step, const GatedFfn& ffn) {
    ScratchArena arena(nullptr);
    GatedScratch(arena, step, ffn);
    return arena.used();
}

std::int64_t ffn_bytes(const Rows& step, const ExpertsFfn& ffn) {
    ScratchArena arena(nullptr);
    ExpertScratch(arena, step, ffn);
    return arena.used();
}

}  // namespace shoal
