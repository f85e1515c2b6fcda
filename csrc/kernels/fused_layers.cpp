// Layers one after another. Every product, norm and attention is the one that a call of its own would be, on the same
// numbers in the same order: results are the same bits.
#include "fused_layers.h"

#include "ffn.h"
#include "scratch_arena.h"

namespace shoal {
namespace {

Rows rows_of(const Kernels& kernels, const FusedStep& s) { return {kernels, s.rows, s.stage.hidden, s.stage.dtype}; }

// Intermediates, all [rows, n] without gaps.
struct StepScratch {
    char *normed, *qkv, *attended, *fed, *ffn;
    std::int64_t bytes;

    StepScratch(const FusedStep& s, const Rows& rows) {
        std::int64_t wide = 0, heads = 0, ffn_size = 0;
        for (std::int64_t i = 0; i < s.stage.count; ++i) {
            const FusedLayer& layer = s.stage.layers[i];
            wide = std::max(wide, layer.qkv.outputs);
            heads = std::max(heads, layer.out.inputs);
            ffn_size = std::max(ffn_size, layer.experts ? ffn_bytes(rows, *layer.experts) : ffn_bytes(rows, layer.ffn));
        }
        ScratchArena arena(static_cast<char*>(s.work));
        const std::int64_t column = s.rows * rows.bytes();
        normed = arena.bytes(column * s.stage.hidden);
        qkv = arena.bytes(column * wide);
        attended = arena.bytes(column * heads);
        fed = arena.bytes(column * s.stage.hidden);
        ffn = arena.bytes(ffn_size);
        bytes = arena.used();
    }
};

class Run {
public:
    Run(const Kernels& kernels, const FusedStep& s)
        : k_(kernels), s_(s), stage_(s.stage), rows_(rows_of(kernels, s)), at_(s, rows_) {}

    int all() {
        const void* add = nullptr;
        for (std::int64_t i = 0; i < stage_.count; ++i) {
            const FusedLayer& layer = stage_.layers[i];
            attend(layer, norm_of(layer.attention_norm, add));
            if (const int missing = summed(); missing >= 0) return missing;
            if (layer.after_attention_norm) rows_.norm(norm_of(layer.after_attention_norm), at_.fed, at_.fed);
            const Norm before = norm_of(layer.ffn_norm, at_.fed);
            if (layer.experts) {
                rows_.norm(before, s_.x, at_.normed);
                run_ffn(rows_, *layer.experts, at_.normed, at_.fed, at_.ffn);
            } else {
                run_ffn(rows_, layer.ffn, before, s_.x, at_.normed, at_.fed, at_.ffn);
            }
            if (const int missing = summed(); missing >= 0) return missing;
            if (layer.after_ffn_norm) rows_.norm(norm_of(layer.after_ffn_norm), at_.fed, at_.fed);
            add = at_.fed;
        }
        if (stage_.norm) {
            rows_.norm(norm_of(stage_.norm, add), s_.x, s_.out);
        } else {
            k_.add({s_.x, add, s_.out, s_.rows * stage_.hidden, stage_.dtype});
        }
        return -1;
    }

private:
    // What a layer's half made of this rank's heads or columns, added up over the ranks.
    int summed() const {
        if (!stage_.sums.all_reduce) return -1;
        const std::uint64_t bytes = s_.rows * stage_.hidden * rows_.bytes();
        return stage_.sums.all_reduce(stage_.sums.group, at_.fed, bytes, stage_.dtype);
    }

    Norm norm_of(const void* weight, const void* add = nullptr) const {
        return {add, weight, stage_.eps, stage_.norm_dtype};
    }

    void attend(const FusedLayer& layer, const Norm& before) const {
        rows_.product_of_normed(layer.qkv, before, s_.x, at_.normed, at_.qkv);
        const PagedKv& kv = layer.kv;
        const std::int64_t size = rows_.bytes(), stride = layer.qkv.outputs;
        char* q = at_.qkv;
        char* k = q + layer.heads * kv.width * size;
        char* v = k + kv.heads * kv.width * size;
        if (layer.q_norm) {
            norm_heads(layer, q, layer.heads, layer.q_norm);
            norm_heads(layer, k, kv.heads, layer.k_norm);
        }
        const Rotation rotation = layer.rope < 0 ? Rotation{} : stage_.rotations[layer.rope];
        k_.rope_write({.q = q, .k = k, .v = v, .cos = rotation.cos, .sin = rotation.sin, .slots = s_.slots, .kv = kv,
                       .rows = s_.rows, .q_stride = stride, .k_stride = stride, .v_stride = stride,
                       .heads = layer.heads, .dim = layer.rope_dim, .interleaved = layer.interleaved,
                       .dtype = stage_.dtype});
        k_.attention({.q = q, .out = at_.attended, .lse = nullptr, .sinks = layer.sinks, .kv = kv,
                      .sequences = s_.sequences, .q_stride = stride, .heads = layer.heads, .window = layer.window,
                      .key_stride = 1, .key_offset = 0, .scale = layer.scale, .softcap = layer.softcap,
                      .dtype = stage_.dtype});
        rows_.product(layer.out, at_.attended, at_.fed);
    }

    // Heads lie in rows of q | k | v: as many calls as there are heads or rows, whichever are fewer.
    void norm_heads(const FusedLayer& layer, char* heads, std::int64_t count, const void* weight) const {
        const std::int64_t size = rows_.bytes(), stride = layer.qkv.outputs, width = layer.kv.width;
        const bool by_row = s_.rows < count;
        const std::int64_t calls = by_row ? s_.rows : count, rows = by_row ? count : s_.rows;
        const std::int64_t apart = by_row ? stride : width, step = by_row ? width : stride;
        for (std::int64_t i = 0; i < calls; ++i) {
            char* x = heads + i * apart * size;
            k_.rms_norm({.x = x, .add = nullptr, .weight = weight, .out = x, .rows = rows, .width = width,
                         .x_stride = step, .add_stride = 0, .out_stride = step, .eps = stage_.eps,
                         .dtype = stage_.dtype, .weight_dtype = stage_.norm_dtype});
        }
    }

    const Kernels& k_;
    const FusedStep& s_;
    const FusedLayers& stage_;
    const Rows rows_;
    const StepScratch at_;
};

}  // namespace

std::int64_t fused_layers_bytes(const Kernels& kernels, const FusedStep& step) {
    return StepScratch(step, rows_of(kernels, step)).bytes;
}

int run_fused_layers(const Kernels& kernels, const FusedStep& step) {
    return step.rows ? Run(kernels, step).all() : -1;
}

}  // namespace shoal
