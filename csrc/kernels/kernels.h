// What a kernel is given, and the table of kernels of one processor kind. Sizes count elements unless they say bytes.
#pragma once

#include <cstdint>

#include "simd.h"

namespace shoal {

// EIGHT_BIT is of a cache only: int8 numbers, ±127 steps of a bfloat16 scale a token and head.
enum Type : std::int32_t { FLOAT32 = 0, BFLOAT16 = 1, EIGHT_BIT = 2 };

// y [rows, out] = x [rows, in] · wᵀ + bias, with w [out, in] row by row, as checkpoints have it.
struct Linear {
    const void* x;
    const void* w;
    const void* bias;  // null: none
    void* y;
    std::int64_t rows, in, out;
    std::int64_t x_stride, y_stride;  // between rows
    Type type;                        // of all four
};

// out = x / sqrt(mean(x²) + eps) · weight; with `add`, of x + add, which is left in x.
struct RmsNorm {
    void* x;
    const void* add;  // null: none
    const void* weight;
    void* out;
    std::int64_t rows, width;
    std::int64_t x_stride, add_stride, out_stride;
    float eps;
    Type type;         // of x, add and out
    Type weight_type;  // where it is the wider one, the result is rounded after the product, else before
};

enum Gate : std::int32_t { SILU = 0, GELU_TANH = 1, SWIGLU_OAI = 2 };

// out [rows, width] = act(gate) · up, of rows gate | up; SWIGLU_OAI as in engine/ops/reference_experts.py.
struct GatedProduct {
    const void* gate_up;
    void* out;
    std::int64_t rows, width, stride;
    Gate gate;
    Type type;
    float limit, alpha;  // of SWIGLU_OAI
};

// Turns the first `dim` channels of every head of q and k by the row's angles, q in place, and puts k and v into
// their slots of the cache.
struct RopeWrite {
    void* q;        // [rows, q_heads, width], rows q_stride apart
    const void* k;  // [rows, kv_heads, width]
    const void* v;  // [rows, kv_heads, v_width]
    const void* cos;  // [rows, dim]; null: nothing is turned
    const void* sin;  // with the sign of its channel
    void* k_cache;    // [slots, kv_heads, width]
    void* v_cache;    // [slots, kv_heads, v_width]
    const std::int64_t* slots;  // [rows]
    std::int64_t rows, q_stride, k_stride, v_stride;
    std::int64_t q_heads, kv_heads, width, v_width, dim;
    std::int32_t interleaved;  // a pair is (2i, 2i + 1), else (i, i + dim / 2)
    Type type;                 // of all but the cache
    void* k_scales;            // [slots, kv_heads] bfloat16 of an eight-bit cache, else null
    void* v_scales;
    Type kv_type;              // of the cache: `type`, or EIGHT_BIT, then width and v_width are at most MAX_WIDTH
};

constexpr std::int64_t MAX_WIDTH = 1024;

// out = x + add
struct Sum {
    const void* x;
    const void* add;
    void* out;
    std::int64_t count;
    Type type;
};

// Attention of a flat batch over paged keys and values.
struct Attention {
    const void* q;  // [rows, heads, width], rows q_stride apart
    void* out;      // [rows, heads, v_width]
    float* lse;     // [rows, heads], null: not wanted
    const void* k;  // [slots, kv_heads, width], slots k_slot apart and heads k_head
    const void* v;  // [slots, kv_heads, v_width]; may be a part of k
    const std::int32_t* starts;    // [sequences + 1]
    const std::int32_t* contexts;  // [sequences]
    const std::int32_t* tables;    // [sequences, table_stride]
    const float* sinks;            // [heads], null: none
    std::int64_t sequences, table_stride, q_stride;
    std::int64_t k_slot, k_head, v_slot, v_head;
    std::int64_t heads, kv_heads, width, v_width, block_size;
    std::int64_t window;  // 0: none
    std::int64_t key_stride, key_offset;
    float scale, softcap;  // softcap 0: none
    Type type;             // of q and out
    Type kv_type;
    const void* k_scales;  // [slots, kv_heads] bfloat16 of an eight-bit cache, else null
    const void* v_scales;
};

struct Kernels {
    const char* name;
    void (*linear)(const Linear&);
    void (*rms_norm)(const RmsNorm&);
    void (*gated_product)(const GatedProduct&);
    void (*rope_write)(const RopeWrite&);
    void (*attention)(const Attention&);
    void (*add)(const Sum&);
};

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels;

}  // namespace shoal
