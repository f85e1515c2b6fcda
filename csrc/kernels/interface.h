// What Python gives the kernels, stated once: the library carries the text of this declaration, from which
// engine/ops/native_library.py learns how to pack arguments. Sizes count elements unless they say bytes; strides are
// between rows; a pointer that may be null says so.
#pragma once

#include <cstdint>

// Not `inline`: the linker would take one text for all libraries of a process.
#define SHOAL_INTERFACE(...) \
    __VA_ARGS__              \
    constexpr char INTERFACE[] = #__VA_ARGS__;

namespace shoal {

// No preprocessor directives in here.
SHOAL_INTERFACE(

// EIGHT_BIT is of a cache only: int8 numbers, ±127 steps of a bfloat16 scale per token and head.
enum DType : std::int32_t { FLOAT32 = 0, BFLOAT16 = 1, EIGHT_BIT = 2 };
enum Scheme : std::int32_t { DENSE = 0, INT8 = 1, INT4 = 2 };
enum Gate : std::int32_t { SILU = 0, GELU_TANH = 1, SWIGLU_OAI = 2 };
// What is done to a row before it is quantized.
enum Prologue : std::int32_t { AS_IS = 0, SILU_MUL = 1, GELU_TANH_MUL = 2, NORMED = 3 };
enum Scoring : std::int32_t { SOFTMAX = 0, SIGMOID = 1 };
// A group's score is its best expert's, or the sum of its best two.
enum GroupScore : std::int32_t { MAX = 0, TOP2 = 1 };

constexpr std::int64_t MAX_WIDTH = 1024;  // of a head in an eight-bit cache
constexpr std::int64_t MAX_EXPERTS = 1024;
constexpr std::int64_t PANEL = 16;  // outputs of a quantized matrix that lie together
constexpr std::int64_t GROUP = 32;  // inputs of a quantized matrix that share a scale

// [outputs, inputs]: dense row by row, as checkpoints have it; quantized as quantized.h says.
struct Matrix {
    const void* w;
    const void* scales;  // quantized only
    const void* bias;    // [outputs]; null: none
    std::int64_t inputs, outputs;
    Scheme scheme;
};

// y [rows, outputs] = x [rows, inputs] · weightᵀ + bias
struct Linear {
    const void* x;
    void* y;
    Matrix weight;
    std::int64_t rows, x_stride, y_stride;
    DType dtype;  // of all four
};

// x + add, which is left in x, normed.
struct Norm {
    const void* add;     // null: none
    const void* weight;
    float eps;
    DType dtype;         // of the weight
};

// y [rows, outputs] = f(x) · weightᵀ + bias, of rows f(x) rounded to ±127 steps of a group's largest magnitude.
struct QuantizedLinear {
    void* x;    // [rows, inputs]; of SILU_MUL and GELU_TANH_MUL [rows, 2 · inputs], gate | up
    void* y;
    Matrix weight;
    Norm norm;  // of NORMED; what is added has no gaps between rows
    std::int64_t rows, x_stride, y_stride;
    Prologue prologue;
    DType dtype;  // of x, what is added, bias and y
};

// Rows of x lie expert by expert, counts[e] of expert e; every expert has weights of the same shape, `codes_bytes` and
// `scales_bytes` apart, and biases `outputs` apart. `linear` describes all rows and the first expert.
struct QuantizedExperts {
    QuantizedLinear linear;
    const std::int64_t* counts;
    std::int64_t experts, codes_bytes, scales_bytes;
};

// Outputs `rows` of an INT8 weight as they are: out [count, inputs] = scale · code.
struct QuantizedRows {
    const void* codes;
    const void* scales;
    const std::int64_t* rows;
    void* out;
    std::int64_t count, inputs;
    DType dtype;  // of out
};

// out = x / sqrt(mean(x²) + eps) · weight; with `add`, of x + add, which is left in x.
struct RmsNorm {
    void* x;
    const void* add;  // null: none
    const void* weight;
    void* out;
    std::int64_t rows, width, x_stride, add_stride, out_stride;
    float eps;
    DType dtype;         // of x, add and out
    DType weight_dtype;  // where it is the wider one, the result is rounded after the product, else before
};

// out [rows, width] = act(gate) · up, of rows gate | up; SWIGLU_OAI as in engine/ops/reference_experts.py.
struct GatedProduct {
    const void* gate_up;
    void* out;
    std::int64_t rows, width, stride;
    Gate gate;
    DType dtype;
    float limit, alpha;  // of SWIGLU_OAI
};

// A layer's cache: k [slots, heads, width] and v [slots, heads, v_width], which may be a part of k.
struct PagedKv {
    void* k;
    void* v;
    void* k_scales;  // [slots, heads] bfloat16 of an eight-bit cache, else null
    void* v_scales;
    std::int64_t k_slot, k_head, v_slot, v_head;  // from one slot or head to the next
    std::int64_t heads, width, v_width, block_size;
    DType dtype;
};

// Rotates the first `dim` channels of every head of q and k by the row's angles, q in place, and puts k and v into
// their slots of the cache, which has no gaps.
struct RopeWrite {
    void* q;          // [rows, heads, width]
    const void* k;    // [rows, kv.heads, width]
    const void* v;    // [rows, kv.heads, v_width]
    const void* cos;  // [rows, dim]; null: nothing is rotated
    const void* sin;  // with the sign of its channel
    const std::int64_t* slots;  // [rows]
    PagedKv kv;       // of `dtype`, or EIGHT_BIT with widths of at most MAX_WIDTH
    std::int64_t rows, q_stride, k_stride, v_stride, heads, dim;
    std::int32_t interleaved;  // a pair is (2i, 2i + 1), else (i, i + dim / 2)
    DType dtype;               // of all but the cache
};

struct Sequences {
    const std::int32_t* starts;    // [count + 1]
    const std::int32_t* contexts;  // [count]
    const std::int32_t* tables;    // [count, table_stride]
    std::int64_t count, table_stride;
};

// Attention of a flat batch over paged keys and values.
struct Attention {
    const void* q;  // [rows, heads, width]
    void* out;      // [rows, heads, v_width]
    float* lse;     // [rows, heads]; null: not wanted
    const float* sinks;  // [heads]; null: none
    PagedKv kv;
    Sequences sequences;
    std::int64_t q_stride, heads;
    std::int64_t window;  // 0: none
    std::int64_t key_stride, key_offset;
    float scale, softcap;  // softcap 0: none
    DType dtype;           // of q and out
};

// Which experts a row goes to and with what weight: `choose_experts` of engine/layers/router.py, whose names these are.
struct Router {
    const float* weight;      // [experts, hidden]
    const float* bias;        // [experts]; null: none
    const float* correction;  // [experts]; null: none
    std::int64_t experts, top_k, groups, top_groups;
    float scaling;
    Scoring scoring;
    GroupScore group_score;
    std::int32_t softmax_after_top_k;  // scores are the logits, and weights a softmax of those chosen; no groups
    std::int32_t normalize;
};

// down(act(gate) · up), of the products gate | up with a row.
struct GatedFfn {
    Matrix gate_up, down;
    Gate gate;
    float limit, alpha;  // see GatedProduct
};

// Σ weight · expert(row) over a row's experts, and what the shared ones make of it. See engine/layers/moe.py.
struct ExpertsFfn {
    Router router;
    GatedFfn routed;  // the first of all experts, which are alike
    std::int64_t gate_up_bytes, gate_up_scales_bytes, down_bytes, down_scales_bytes;  // from one expert to the next
    GatedFfn shared;     // `gate_up.w` null: none
    Matrix shared_gate;  // [1, hidden], whose sigmoid scales what the shared ones made; `w` null: none
};

struct Experts {
    const ExpertsFfn* ffn;
    void* x;    // [rows, hidden]
    void* out;  // [rows, hidden]
    std::int64_t rows, hidden;
    DType dtype;
};

// x + attention(norm(x)), then the same with the feed-forward network; see engine/models/decoder.py.
struct FusedLayer {
    const void* attention_norm;        // [hidden]
    const void* after_attention_norm;  // null: none; likewise below
    const void* ffn_norm;
    const void* after_ffn_norm;
    const void* q_norm;  // [width]
    const void* k_norm;
    const float* sinks;  // [heads]
    PagedKv kv;
    Matrix qkv, out;
    GatedFfn ffn;
    const ExpertsFfn* experts;  // null: `ffn`
    std::int64_t heads, window, rope_dim;
    float scale, softcap;
    std::int32_t rope;  // which of the step's rotations; -1: nothing is rotated
    std::int32_t interleaved;
};

struct Rotation {
    const void* cos;  // [rows, rope_dim of the layers that use it]
    const void* sin;
};

// -1, or the index of the rank that did not come.
using AllReduce = int (*)(void* group, void* data, std::uint64_t bytes, int dtype);

// How a rank that holds some of the heads and columns adds its products up with the other ranks'.
struct RankSums {
    AllReduce all_reduce;  // null: this rank alone holds the layers
    void* group;
};

struct FusedLayers {
    const FusedLayer* layers;
    const void* norm;  // after the last layer; null: none
    const Rotation* rotations;
    RankSums sums;
    std::int64_t count, hidden;
    float eps;
    DType dtype;  // of everything but the norms' weights and the cache
    DType norm_dtype;
};

struct FusedStep {
    FusedLayers stage;
    void* x;     // [rows, hidden]; changed
    void* out;   // [rows, hidden]: x after the last layer, normed if there is a norm
    void* work;  // `shoal_fused_layers_bytes`
    const std::int64_t* slots;
    Sequences sequences;
    std::int64_t rows;
};

extern "C" {
const char* shoal_interface();
// Null beyond the last instruction set; they are in the order of what they can do, best last.
const char* shoal_isa_name(int isa);
int shoal_isa_runs(int isa);
int shoal_pool_threads();
// Kernels run on `threads` threads and return 0, or 1 when they cannot allocate scratch memory.
int shoal_linear(int isa, int threads, const Linear* a);
int shoal_quantized_linear(int isa, int threads, const QuantizedLinear* a);
int shoal_quantized_experts(int isa, int threads, const QuantizedExperts* a);
int shoal_quantized_rows(int isa, int threads, const QuantizedRows* a);
int shoal_rms_norm(int isa, int threads, const RmsNorm* a);
int shoal_gated_product(int isa, int threads, const GatedProduct* a);
int shoal_rope_write(int isa, int threads, const RopeWrite* a);
int shoal_attention(int isa, int threads, const Attention* a);
int shoal_experts(int isa, int threads, const Experts* a);
// 2 + the index of a rank that did not come.
int shoal_fused_layers(int isa, int threads, const FusedStep* a);
std::int64_t shoal_fused_layers_bytes(int isa, int threads, const FusedStep* a);
// `steps` rounds of byte multiplies on registers alone, on every thread: what the processor can do at most. Returns how
// many products of two bytes that is.
std::int64_t shoal_quantized_peak(int isa, int threads, std::int64_t steps);
}

)  // SHOAL_INTERFACE

}  // namespace shoal
