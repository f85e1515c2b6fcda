// Products with weights of eight or four bits: what a kernel is given, how the weights lie, and one table a processor
// kind. Weights are packed once, on loading, into panels of PANEL outputs and steps of two or four inputs (`in` padded
// to GROUP with zeros):
//
//     int8   [panels, in / 2, PANEL, 2]                 int8: two inputs of an output side by side, a step after a step
//     int4   [panels, in / GROUP, GROUP / 8, PANEL, 4]  bytes: the low half is of one step, the high half of the next
//
// A vector of 32 bytes is eight outputs by two inputs of 16 bits, or by four of eight: what a multiply adds up to 32 or
// 16 bits; one of 64 bytes a whole panel of them. A panel is read once and in order, whatever the number of rows.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace shoal {

constexpr std::int64_t PANEL = 16;  // outputs
constexpr std::int64_t GROUP = 32;  // inputs that share a scale, in four bits

enum Scheme : std::int32_t { INT8 = 0, INT4 = 1 };

// What is done to a row before it is quantized.
enum Prologue : std::int32_t { AS_IS = 0, SILU_PRODUCT = 1, GELU_PRODUCT = 2, NORM = 3 };

// y [rows, out] = f(x) [rows, in] · wᵀ + bias, of rows f(x) rounded to ±127 steps
// of the largest magnitude of a group. Sums within a group are exact.
//
//     INT8   w = scale · code, codes -127 … 127    y = Σ over groups of x_scale · scale · Σ xq · code
//     INT4   w = scale · code + least, 0 … 15      y = Σ over groups of x_scale · (scale · Σ xq · code + least · Σ xq)
struct QuantizedLinear {
    void* x;                   // [rows, in]; of the products [rows, 2 · in], gate | up
    const void* add;           // NORM: [rows, in] without gaps that is added to x, in its place, before; null: none
    const void* norm;          // NORM: [in]
    const std::uint8_t* codes;
    const void* scales;  // half, [panels, in / GROUP, PANEL]; INT4: [panels, in / GROUP, 2, PANEL], with leasts
    const void* bias;          // [out]; null: none
    void* y;
    std::int64_t rows, in, out;
    std::int64_t x_stride, y_stride;
    float eps;
    Scheme scheme;
    Prologue prologue;
    Type type;       // of x, add, bias and y
    Type norm_type;  // see RmsNorm
};

// Rows of x lie expert by expert, counts[e] of expert e; every expert has weights of the same shape, `codes_bytes`
// and `scales_bytes` apart, and biases `out` apart. `one` describes all rows and the first expert.
struct QuantizedExperts {
    QuantizedLinear one;
    const std::int64_t* counts;
    std::int64_t experts, codes_bytes, scales_bytes;
};

// Outputs `rows` of an INT8 weight as they are: out [count, in] = scale · code.
struct QuantizedRows {
    const std::uint8_t* codes;
    const void* scales;
    const std::int64_t* rows;
    void* out;
    std::int64_t count, in;
    Type type;  // of out
};
void quantized_rows(const QuantizedRows& a);

struct QuantizedKernels {
    const char* name;
    void (*linear)(const QuantizedLinear&);
    void (*experts)(const QuantizedExperts&);
    // `steps` rounds of byte multiplies on registers alone, on every thread of the pool: what the processor can do at
    // most. Returns how many products of two bytes that is.
    std::int64_t (*peak)(std::int64_t steps);
};

extern const QuantizedKernels portable_quantized, avx2_quantized, avx512_quantized;

}  // namespace shoal
