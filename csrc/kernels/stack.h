// A step through many layers in one call: what a model's layers are, and what a step brings.
#pragma once

#include "feed.h"

namespace shoal {

// x + attention(norm(x)), then the same with the feed-forward network; see engine/models/decoder.py.
struct StackLayer {
    const void* attention_norm;        // [hidden]
    const void* after_attention_norm;  // null: none; likewise below
    const void* ffn_norm;
    const void* after_ffn_norm;
    const void* q_norm;  // [width]
    const void* k_norm;
    const float* sinks;  // [heads]
    void* k_cache;  // [slots, kv_heads, width]
    void* v_cache;  // [slots, kv_heads, v_width]
    void* k_scales;  // [slots, kv_heads] of an eight-bit cache
    void* v_scales;
    Matrix qkv, out;
    GatedFfn ffn;
    const ExpertsFfn* experts;  // null: `ffn`
    std::int64_t heads, kv_heads, width, v_width, window, dim;
    float scale, softcap;
    std::int32_t rope;  // which angles of the step; -1: nothing is turned
    std::int32_t interleaved;
};

constexpr int MAX_ROPES = 4;

struct Stack {
    const StackLayer* layers;
    const void* norm;  // after the last layer; null: none
    void* x;           // [rows, hidden]; changed
    void* out;         // [rows, hidden]: x after the last layer, normed if there is a norm
    void* work;        // `shoal_stack_work` bytes
    const std::int64_t* slots;
    const std::int32_t* starts;
    const std::int32_t* contexts;
    const std::int32_t* tables;
    const void* cos[MAX_ROPES];  // [rows, dim of the layers that use it]
    const void* sin[MAX_ROPES];
    std::int64_t count, rows, hidden, sequences, table_stride, block_size;
    float eps;
    Type type;       // of everything but the norms' weights and the cache
    Type norm_type;
    Type kv_type;
};

// How a rank that holds some of the heads and columns adds its products up with the other ranks'.
struct Sums {
    // -1, or the index of the rank that did not come; `kind` as in csrc/collectives.cpp.
    int (*all_reduce)(void* group, void* data, std::uint64_t bytes, int kind);
    void* group;
};

// Bytes that a step of that many rows works in.
std::int64_t stack_work(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack);
// `sums` null: this rank alone holds the layers. -1, or the index of the rank that did not come.
int run_stack(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack, const Sums* sums);

}  // namespace shoal
