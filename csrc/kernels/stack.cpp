// Layers one after another. Every product, norm and attention is the one that a call of its own would be, on the same
// numbers in the same order: results are the same bits.
#include "stack.h"

#include <algorithm>

namespace shoal {
namespace {

constexpr std::int64_t LINE = 64;

std::int64_t bytes_of(Type type) { return type == FLOAT32 ? 4 : 2; }
std::int64_t whole_lines(std::int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

// Where in `work` each intermediate lies; all are [rows, n] without gaps.
struct Places {
    std::int64_t normed = 0, qkv = 0, attended = 0, gate_up = 0, inner = 0, fed = 0, end = 0;

    explicit Places(const Stack& s) {
        std::int64_t wide = 0, heads = 0, gates = 0;
        for (std::int64_t i = 0; i < s.count; ++i) {
            const StackLayer& layer = s.layers[i];
            wide = std::max(wide, layer.qkv.out);
            heads = std::max(heads, layer.out.in);
            gates = std::max(gates, layer.gate_up.out);
        }
        const auto take = [&](std::int64_t& place, std::int64_t width) {
            place = end;
            end += whole_lines(s.rows * width * bytes_of(s.type));
        };
        take(normed, s.hidden);
        take(qkv, wide);
        take(attended, heads);
        take(gate_up, gates);
        take(inner, gates / 2);
        take(fed, s.hidden);
    }
};

class Run {
public:
    Run(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack, const Sums* sums)
        : k_(kernels), q_(quantized), s_(stack), sums_(sums), at_(stack) {}

    int all() {
        const void* add = nullptr;
        for (std::int64_t i = 0; i < s_.count; ++i) {
            const StackLayer& layer = s_.layers[i];
            norm(s_.x, add, layer.attention_norm, place(at_.normed));
            attend(layer);
            if (const int missing = summed(); missing >= 0) return missing;
            if (layer.after_attention_norm) {
                norm(place(at_.fed), nullptr, layer.after_attention_norm, place(at_.fed));
            }
            norm(s_.x, place(at_.fed), layer.ffn_norm, place(at_.normed));
            feed(layer);
            if (const int missing = summed(); missing >= 0) return missing;
            if (layer.after_ffn_norm) norm(place(at_.fed), nullptr, layer.after_ffn_norm, place(at_.fed));
            add = place(at_.fed);
        }
        if (s_.norm) {
            norm(s_.x, add, s_.norm, s_.out);
        } else {
            k_.add(Sum{s_.x, add, s_.out, s_.rows * s_.hidden, s_.type});
        }
        return -1;
    }

private:
    char* place(std::int64_t offset) const { return static_cast<char*>(s_.work) + offset; }

    // What a layer's half made of this rank's heads or columns, added up over the ranks.
    int summed() const {
        if (!sums_) return -1;
        const std::uint64_t bytes = s_.rows * s_.hidden * bytes_of(s_.type);
        return sums_->all_reduce(sums_->group, place(at_.fed), bytes, s_.type == FLOAT32 ? 0 : 1);
    }

    void norm(void* x, const void* add, const void* weight, void* out) const {
        k_.rms_norm(RmsNorm{x, add, weight, out, s_.rows, s_.hidden, s_.hidden, s_.hidden, s_.hidden, s_.eps, s_.type,
                            s_.norm_type});
    }

    void product(const Matrix& m, void* x, void* y, Prologue prologue = AS_IS) const {
        if (!m.packed) {
            k_.linear(Linear{x, m.w, m.bias, y, s_.rows, m.in, m.out, m.in, m.out, s_.type});
            return;
        }
        QuantizedLinear a{};
        a.x = x;
        a.codes = static_cast<const std::uint8_t*>(m.w);
        a.scales = m.scales;
        a.bias = m.bias;
        a.y = y;
        a.rows = s_.rows;
        a.in = m.in;
        a.out = m.out;
        a.x_stride = prologue == AS_IS ? m.in : 2 * m.in;
        a.y_stride = m.out;
        a.scheme = static_cast<Scheme>(m.packed - 1);
        a.prologue = prologue;
        a.type = s_.type;
        q_.linear(a);
    }

    void attend(const StackLayer& layer) const {
        product(layer.qkv, place(at_.normed), place(at_.qkv));
        const std::int64_t size = bytes_of(s_.type), stride = layer.qkv.out;
        char* q = place(at_.qkv);
        char* k = q + layer.heads * layer.width * size;
        char* v = k + layer.kv_heads * layer.width * size;
        if (layer.q_norm) {
            norm_heads(layer, q, layer.heads, layer.q_norm);
            norm_heads(layer, k, layer.kv_heads, layer.k_norm);
        }
        const void* cos = layer.rope < 0 ? nullptr : s_.cos[layer.rope];
        const void* sin = layer.rope < 0 ? nullptr : s_.sin[layer.rope];
        k_.rope_write(RopeWrite{q, k, v, cos, sin, layer.k_cache, layer.v_cache, s_.slots, s_.rows, stride,
                                stride, stride, layer.heads, layer.kv_heads, layer.width, layer.v_width, layer.dim,
                                layer.interleaved, s_.type, layer.k_scales, layer.v_scales, s_.kv_type});
        Attention a{};
        a.q = q;
        a.out = place(at_.attended);
        a.k = layer.k_cache;
        a.v = layer.v_cache;
        a.k_scales = layer.k_scales;
        a.v_scales = layer.v_scales;
        a.starts = s_.starts;
        a.contexts = s_.contexts;
        a.tables = s_.tables;
        a.sinks = layer.sinks;
        a.sequences = s_.sequences;
        a.table_stride = s_.table_stride;
        a.q_stride = stride;
        a.k_slot = layer.kv_heads * layer.width;
        a.k_head = layer.width;
        a.v_slot = layer.kv_heads * layer.v_width;
        a.v_head = layer.v_width;
        a.heads = layer.heads;
        a.kv_heads = layer.kv_heads;
        a.width = layer.width;
        a.v_width = layer.v_width;
        a.block_size = s_.block_size;
        a.window = layer.window;
        a.key_stride = 1;
        a.scale = layer.scale;
        a.softcap = layer.softcap;
        a.type = s_.type;
        a.kv_type = s_.kv_type;
        k_.attention(a);
        product(layer.out, place(at_.attended), place(at_.fed));
    }

    // Heads lie in rows of q | k | v: as many calls as there are heads or rows, whichever are fewer.
    void norm_heads(const StackLayer& layer, char* heads, std::int64_t count, const void* weight) const {
        const std::int64_t size = bytes_of(s_.type), stride = layer.qkv.out, width = layer.width;
        const bool by_row = s_.rows < count;
        const std::int64_t calls = by_row ? s_.rows : count, rows = by_row ? count : s_.rows;
        const std::int64_t apart = by_row ? stride : width, step = by_row ? width : stride;
        for (std::int64_t i = 0; i < calls; ++i) {
            char* x = heads + i * apart * size;
            k_.rms_norm(RmsNorm{x, nullptr, weight, x, rows, width, step, 0, step, s_.eps, s_.type, s_.norm_type});
        }
    }

    void feed(const StackLayer& layer) const {
        char* gate_up = place(at_.gate_up);
        product(layer.gate_up, place(at_.normed), gate_up);
        if (layer.down.packed) {
            product(layer.down, gate_up, place(at_.fed), layer.gate == SILU ? SILU_PRODUCT : GELU_PRODUCT);
            return;
        }
        k_.gated_product(GatedProduct{gate_up, place(at_.inner), s_.rows, layer.down.in, layer.gate_up.out, layer.gate,
                                      s_.type});
        product(layer.down, place(at_.inner), place(at_.fed));
    }

    const Kernels& k_;
    const QuantizedKernels& q_;
    const Stack& s_;
    const Sums* sums_;
    const Places at_;
};

}  // namespace

std::int64_t stack_work(const Stack& stack) { return Places(stack).end; }

int run_stack(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack, const Sums* sums) {
    return stack.rows ? Run(kernels, quantized, stack, sums).all() : -1;
}

}  // namespace shoal
