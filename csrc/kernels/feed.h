// The feed-forward half of a layer: a gated network, or experts of which each row has some.
#pragma once

#include "kernels.h"
#include "quantized.h"
#include "router.h"

namespace shoal {

// The weight of a product, dense [out, in] or packed.
struct Matrix {
    const void* w;
    const void* scales;  // packed only
    const void* bias;    // [out]; null: none
    std::int64_t in, out;
    std::int32_t packed;  // 0: dense, of the step's type; else 1 + Scheme
    std::int32_t unused;
};

// down(act(gate) · up), of the products gate | up with a row.
struct GatedFfn {
    Matrix gate_up, down;
    Gate gate;
    float limit, alpha;  // see GatedProduct
    std::int32_t unused;
};

// Σ weight · expert(row) over a row's experts, and what the shared ones make of it. See engine/layers/moe.py.
struct ExpertsFfn {
    Router router;
    GatedFfn first;  // of all experts, which are alike
    std::int64_t gate_up_bytes, gate_up_scales_bytes, down_bytes, down_scales_bytes;  // from one expert to the next
    GatedFfn shared;     // `gate_up.w` null: none
    Matrix shared_gate;  // [1, hidden], whose sigmoid scales what the shared ones made; `w` null: none
};

// x + add, which is left in x, normed.
struct Norm {
    const void* add;  // null: none
    const void* weight;
    float eps;
    Type type;  // of the weight
};

// Kernels as they are called on the rows of one step.
struct Rows {
    const Kernels& kernels;
    const QuantizedKernels& quantized;
    std::int64_t rows, hidden;
    Type type;

    std::int64_t bytes() const { return type == FLOAT32 ? 4 : 2; }  // of a number
    // y [rows, out] = f(x) · wᵀ + bias
    void product(const Matrix& m, void* x, void* y, Prologue prologue = AS_IS) const;
    // y [rows, out] = norm(x) · wᵀ + bias; dense weights take what is normed from `normed` [rows, hidden].
    void product_of_normed(const Matrix& m, const Norm& norm, void* x, void* normed, void* y) const;
    void norm(const Norm& norm, void* x, void* out) const;
};

// norm(x) [rows, hidden] -> out [rows, hidden], which may be what is added to x. In `normed` [rows, hidden], and in `work`
// of as many bytes as the other functions say.
void feed(const Rows& step, const GatedFfn& ffn, const Norm& norm, void* x, void* normed, void* out, char* work);
// x [rows, hidden] -> out [rows, hidden], which may not overlap.
void feed(const Rows& step, const ExpertsFfn& ffn, void* x, void* out, char* work);
std::int64_t feed_work(const Rows& step, const GatedFfn& ffn);
std::int64_t feed_work(const Rows& step, const ExpertsFfn& ffn);

}  // namespace shoal
