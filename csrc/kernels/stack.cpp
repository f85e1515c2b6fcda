// Layers one after another. Every product, norm and attention is the one that a call of its own would be, on the same
// numbers in the same order: results are the same bits.
#include "stack.h"

#include <algorithm>

#include "places.h"

namespace shoal {
namespace {

// Intermediates, all [rows, n] without gaps.
struct StepPlaces {
    char *normed, *qkv, *attended, *fed, *feeding;
    std::int64_t end;

    StepPlaces(const Stack& s, const Rows& step) {
        std::int64_t wide = 0, heads = 0, feeds = 0;
        for (std::int64_t i = 0; i < s.count; ++i) {
            const StackLayer& layer = s.layers[i];
            wide = std::max(wide, layer.qkv.out);
            heads = std::max(heads, layer.out.in);
            feeds = std::max(feeds, layer.experts ? feed_work(step, *layer.experts) : feed_work(step, layer.ffn));
        }
        Places places(static_cast<char*>(s.work));
        const std::int64_t column = s.rows * step.bytes();
        normed = places.bytes(column * s.hidden);
        qkv = places.bytes(column * wide);
        attended = places.bytes(column * heads);
        fed = places.bytes(column * s.hidden);
        feeding = places.bytes(feeds);
        end = places.end();
    }
};

Rows rows_of(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& s) {
    return {kernels, quantized, s.rows, s.hidden, s.type};
}

class Run {
public:
    Run(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack, const Sums* sums)
        : k_(kernels), s_(stack), sums_(sums), step_(rows_of(kernels, quantized, stack)), at_(stack, step_) {}

    int all() {
        const void* add = nullptr;
        for (std::int64_t i = 0; i < s_.count; ++i) {
            const StackLayer& layer = s_.layers[i];
            attend(layer, norm_of(layer.attention_norm, add));
            if (const int missing = summed(); missing >= 0) return missing;
            if (layer.after_attention_norm) step_.norm(norm_of(layer.after_attention_norm), at_.fed, at_.fed);
            const Norm before = norm_of(layer.ffn_norm, at_.fed);
            if (layer.experts) {
                step_.norm(before, s_.x, at_.normed);
                feed(step_, *layer.experts, at_.normed, at_.fed, at_.feeding);
            } else {
                feed(step_, layer.ffn, before, s_.x, at_.normed, at_.fed, at_.feeding);
            }
            if (const int missing = summed(); missing >= 0) return missing;
            if (layer.after_ffn_norm) step_.norm(norm_of(layer.after_ffn_norm), at_.fed, at_.fed);
            add = at_.fed;
        }
        if (s_.norm) {
            step_.norm(norm_of(s_.norm, add), s_.x, s_.out);
        } else {
            k_.add(Sum{s_.x, add, s_.out, s_.rows * s_.hidden, s_.type});
        }
        return -1;
    }

private:
    // What a layer's half made of this rank's heads or columns, added up over the ranks.
    int summed() const {
        if (!sums_) return -1;
        const std::uint64_t bytes = s_.rows * s_.hidden * step_.bytes();
        return sums_->all_reduce(sums_->group, at_.fed, bytes, s_.type == FLOAT32 ? 0 : 1);
    }

    Norm norm_of(const void* weight, const void* add = nullptr) const { return {add, weight, s_.eps, s_.norm_type}; }

    void attend(const StackLayer& layer, const Norm& before) const {
        step_.product_of_normed(layer.qkv, before, s_.x, at_.normed, at_.qkv);
        const std::int64_t size = step_.bytes(), stride = layer.qkv.out;
        char* q = at_.qkv;
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
        a.out = at_.attended;
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
        step_.product(layer.out, at_.attended, at_.fed);
    }

    // Heads lie in rows of q | k | v: as many calls as there are heads or rows, whichever are fewer.
    void norm_heads(const StackLayer& layer, char* heads, std::int64_t count, const void* weight) const {
        const std::int64_t size = step_.bytes(), stride = layer.qkv.out, width = layer.width;
        const bool by_row = s_.rows < count;
        const std::int64_t calls = by_row ? s_.rows : count, rows = by_row ? count : s_.rows;
        const std::int64_t apart = by_row ? stride : width, step = by_row ? width : stride;
        for (std::int64_t i = 0; i < calls; ++i) {
            char* x = heads + i * apart * size;
            k_.rms_norm(RmsNorm{x, nullptr, weight, x, rows, width, step, 0, step, s_.eps, s_.type, s_.norm_type});
        }
    }

    const Kernels& k_;
    const Stack& s_;
    const Sums* sums_;
    const Rows step_;
    const StepPlaces at_;
};

}  // namespace

std::int64_t stack_work(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack) {
    return StepPlaces(stack, rows_of(kernels, quantized, stack)).end;
}

int run_stack(const Kernels& kernels, const QuantizedKernels& quantized, const Stack& stack, const Sums* sums) {
    return stack.rows ? Run(kernels, quantized, stack, sums).all() : -1;
}

}  // namespace shoal
