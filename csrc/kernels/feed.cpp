#include "feed.h"

#include <algorithm>
#include <cstring>

#include "places.h"
#include "pool.h"

namespace shoal {
namespace {

// Whether the gate is applied by the second product, as it rounds its rows.
bool gates_within(const GatedFfn& ffn) { return ffn.down.packed && ffn.gate != SWIGLU_OAI; }
Prologue prologue_of(const GatedFfn& ffn) {
    return !gates_within(ffn) ? AS_IS : ffn.gate == SILU ? SILU_PRODUCT : GELU_PRODUCT;
}

struct GatedPlaces {
    char *gate_up, *inner;

    GatedPlaces(Places& places, const Rows& step, const GatedFfn& ffn)
        : gate_up(places.bytes(step.rows * ffn.gate_up.out * step.bytes())),
          inner(places.bytes(gates_within(ffn) ? 0 : step.rows * ffn.down.in * step.bytes())) {}
};

struct ExpertPlaces {
    float *wide, *logits;  // rows where they are no fp32, [rows, experts]
    Rows routed;  // every row once for each of its experts
    Routing routing;
    char* sorted;  // [routed.rows, hidden]: expert by expert, then what was computed of them
    GatedPlaces inner;
    char *shared_out, *shared_gates;  // [rows, hidden], [rows]
    GatedPlaces shared;

    ExpertPlaces(Places& places, const Rows& step, const ExpertsFfn& ffn)
        : wide(places.take<float>(step.type == FLOAT32 ? 0 : step.rows * step.hidden)),
          logits(places.take<float>(step.rows * ffn.router.experts)),
          routed{step.kernels, step.quantized, step.rows * ffn.router.top_k, step.hidden, step.type},
          routing{places.take<float>(routed.rows), places.take<std::int32_t>(routed.rows),
                  places.take<std::int64_t>(routed.rows), places.take<std::int64_t>(ffn.router.experts)},
          sorted(places.bytes(routed.rows * step.hidden * step.bytes())),
          inner(places, routed, ffn.first),
          shared_out(places.bytes(ffn.shared.gate_up.w ? step.rows * step.hidden * step.bytes() : 0)),
          shared_gates(places.bytes(ffn.shared_gate.w ? step.rows * step.bytes() : 0)),
          shared(places, step, ffn.shared) {}
};

void gate(const Rows& step, const GatedFfn& ffn, const GatedPlaces& at) {
    if (gates_within(ffn)) return;
    step.kernels.gated_product(GatedProduct{at.gate_up, at.inner, step.rows, ffn.down.in, ffn.gate_up.out, ffn.gate,
                                            step.type, ffn.limit, ffn.alpha});
}

QuantizedLinear packed_product(const Rows& step, const Matrix& m, void* x, void* y, Prologue prologue) {
    QuantizedLinear a{};
    a.x = x;
    a.codes = static_cast<const std::uint8_t*>(m.w);
    a.scales = m.scales;
    a.bias = m.bias;
    a.y = y;
    a.rows = step.rows;
    a.in = m.in;
    a.out = m.out;
    a.x_stride = prologue == SILU_PRODUCT || prologue == GELU_PRODUCT ? 2 * m.in : m.in;
    a.y_stride = m.out;
    a.scheme = static_cast<Scheme>(m.packed - 1);
    a.prologue = prologue;
    a.type = step.type;
    return a;
}

// What follows the first product.
void gate_and_down(const Rows& step, const GatedFfn& ffn, void* out, const GatedPlaces& at) {
    gate(step, ffn, at);
    step.product(ffn.down, gates_within(ffn) ? at.gate_up : at.inner, out, prologue_of(ffn));
}

// Products of rows that lie expert by expert; `bytes` and `scales_bytes` lie between one expert's weights and the next's.
void product_of_each(const Rows& step, const Matrix& first, std::int64_t bytes, std::int64_t scales_bytes,
                     const Router& router, const std::int64_t* counts, char* x, char* y, Prologue prologue) {
    if (first.packed) {
        const QuantizedLinear all = packed_product(step, first, x, y, prologue);
        step.quantized.experts(QuantizedExperts{all, counts, router.experts, bytes, scales_bytes});
        return;
    }
    const std::int64_t size = step.bytes();
    for (std::int64_t e = 0; e < router.experts; ++e) {
        Matrix of = first;
        of.w = static_cast<const char*>(first.w) + e * bytes;
        if (first.bias) of.bias = static_cast<const char*>(first.bias) + e * first.out * size;
        if (counts[e]) Rows{step.kernels, step.quantized, counts[e], step.hidden, step.type}.product(of, x, y);
        x += counts[e] * of.in * size;
        y += counts[e] * of.out * size;
    }
}

template <class T>
void route_rows(const Rows& step, const Router& router, T* x, const ExpertPlaces& at) {
    float* wide = at.wide;
    if constexpr (std::is_same_v<T, float>) {
        wide = x;
    } else {
        std::transform(x, x + step.rows * step.hidden, wide, [](T number) { return widen(number); });
    }
    step.kernels.linear(Linear{wide, router.weight, router.bias, at.logits, step.rows, step.hidden, router.experts,
                               step.hidden, router.experts, FLOAT32});
    route(router, at.logits, step.rows, at.routing);
}

// out [rows, hidden] = Σ weight · computed over a row's experts in the order of its choice, in fp32, plus what the
// shared experts made.
template <class T>
void combine(const Rows& step, const ExpertsFfn& ffn, const ExpertPlaces& p, T* out) {
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
void feed(const Rows& step, const ExpertsFfn& ffn, T* x, T* out, const ExpertPlaces& at) {
    const Router& router = ffn.router;
    route_rows(step, router, x, at);
    each_row(step.rows, step.hidden * (router.top_k + 1), [&](std::int64_t row) {
        for (std::int64_t i = row * router.top_k; i < (row + 1) * router.top_k; ++i) {
            T* to = reinterpret_cast<T*>(at.sorted) + at.routing.at[i] * step.hidden;
            std::copy_n(x + row * step.hidden, step.hidden, to);
        }
    });
    const GatedFfn& first = ffn.first;
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

void Rows::product(const Matrix& m, void* x, void* y, Prologue prologue) const {
    if (m.packed) {
        quantized.linear(packed_product(*this, m, x, y, prologue));
    } else {
        kernels.linear(Linear{x, m.w, m.bias, y, rows, m.in, m.out, m.in, m.out, type});
    }
}

void Rows::norm(const Norm& norm, void* x, void* out) const {
    kernels.rms_norm(
        RmsNorm{x, norm.add, norm.weight, out, rows, hidden, hidden, hidden, hidden, norm.eps, type, norm.type});
}

void Rows::product_of_normed(const Matrix& m, const Norm& norm, void* x, void* normed, void* y) const {
    if (!m.packed) {
        this->norm(norm, x, normed);
        product(m, normed, y);
        return;
    }
    QuantizedLinear a = packed_product(*this, m, x, y, NORM);
    a.add = norm.add;
    a.norm = norm.weight;
    a.eps = norm.eps;
    a.norm_type = norm.type;
    quantized.linear(a);
}

void feed(const Rows& step, const GatedFfn& ffn, const Norm& norm, void* x, void* normed, void* out, char* work) {
    Places places(work);
    const GatedPlaces at(places, step, ffn);
    step.product_of_normed(ffn.gate_up, norm, x, normed, at.gate_up);
    gate_and_down(step, ffn, out, at);
}

void feed(const Rows& step, const ExpertsFfn& ffn, void* x, void* out, char* work) {
    Places places(work);
    const ExpertPlaces at(places, step, ffn);
    if (step.type == FLOAT32) {
        feed(step, ffn, static_cast<float*>(x), static_cast<float*>(out), at);
    } else {
        feed(step, ffn, static_cast<bf16*>(x), static_cast<bf16*>(out), at);
    }
}

std::int64_t feed_work(const Rows& step, const GatedFfn& ffn) {
    Places places(nullptr);
    GatedPlaces(places, step, ffn);
    return places.end();
}

std::int64_t feed_work(const Rows& step, const ExpertsFfn& ffn) {
    Places places(nullptr);
    ExpertPlaces(places, step, ffn);
    return places.end();
}

}  // namespace shoal
