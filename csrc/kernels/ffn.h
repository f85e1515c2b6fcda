// The feed-forward half of a layer: a gated network, or experts of which each row has some.
#pragma once

#include "kernels.h"

namespace shoal {

// Kernels as they are called on the rows of one step.
struct Rows {
    const Kernels& kernels;
    std::int64_t rows, hidden;
    DType dtype;

    std::int64_t bytes() const { return dtype == FLOAT32 ? 4 : 2; }  // of a number
    // y [rows, outputs] = f(x) · weightᵀ + bias; dense weights know no prologue.
    void product(const Matrix& weight, void* x, void* y, Prologue prologue = AS_IS) const;
    // y [rows, outputs] = norm(x) · weightᵀ + bias; dense weights take what is normed from `normed` [rows, hidden].
    void product_of_normed(const Matrix& weight, const Norm& norm, void* x, void* normed, void* y) const;
    void norm(const Norm& norm, void* x, void* out) const;
};

// norm(x) [rows, hidden] -> out [rows, hidden], which may be what is added to x. In `normed` [rows, hidden], and in `work`
// of as many bytes as the other functions say.
void run_ffn(const Rows& step, const GatedFfn& ffn, const Norm& norm, void* x, void* normed, void* out, char* work);
// x [rows, hidden] -> out [rows, hidden], which may not overlap.
void run_ffn(const Rows& step, const ExpertsFfn& ffn, void* x, void* out, char* work);
std::int64_t ffn_bytes(const Rows& step, const GatedFfn& ffn);
std::int64_t ffn_bytes(const Rows& step, const ExpertsFfn& ffn);

}  // namespace shoal
