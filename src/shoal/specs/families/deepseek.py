"""DeepSeek V2, V3, V3.2 and kin (Kimi-K2, GLM-5): multi-head latent attention and many small experts."""

from collections.abc import Sequence

from shoal.specs.families.common import Defaults, assemble, dense_ffn, first_sparse, layer_count, read_activation
from shoal.specs.fields import Fields
from shoal.specs.model import (
    AttentionSpec,
    FfnSpec,
    IndexerSpec,
    LayerSpec,
    MlaSpec,
    ModelSpec,
    MtpSpec,
    RopeSpec,
    RouterSpec,
)
from shoal.specs.rope import rope_spec, yarn_mscale


def parse_deepseek_v3(fields: Fields, outer: Fields | None) -> ModelSpec:
    attention = read_mla(fields, read_mla_rope(fields, interleaved=fields.flag("rope_interleave", default=True)))
    return _deepseek(fields, outer, [attention] * layer_count(fields), "DeepseekV3ForCausalLM", max_position=4096)


def parse_deepseek_v32(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Every layer has an indexer that picks the keys a query sees; its own rotation is not interleaved."""
    attention = read_mla(fields, read_mla_rope(fields), read_indexer(fields, 64))
    layers = [attention] * layer_count(fields)
    return _deepseek(fields, outer, layers, "DeepseekV32ForCausalLM", max_position=163_840)


def parse_glm_moe_dsa(fields: Fields, outer: Fields | None) -> ModelSpec:
    """As V3.2; a layer marked `shared` reuses the choice of the last layer that has an indexer."""
    rope = read_mla_rope(fields)
    full, shared = read_mla(fields, rope, read_indexer(fields, 32)), read_mla(fields, rope)
    layers = [full if kind == "full" else shared for kind in _indexer_types(fields)]
    return _deepseek(fields, outer, layers, "GlmMoeDsaForCausalLM", max_position=202_752, groups=1)


def parse_deepseek_v2(fields: Fields, outer: Fields | None) -> ModelSpec:
    """Softmax scores, never renormalized (Transformers ignores `norm_topk_prob`); groups scored by their best."""
    attention = read_mla(fields, read_mla_rope(fields))
    grouped = fields.text("topk_method", default="greedy") == "group_limited_greedy"
    router = RouterSpec(
        experts=fields.size("n_routed_experts", "num_experts", default=64),
        top_k=fields.size("num_experts_per_tok"),
        normalize=False,
        groups=fields.size("n_group") if grouped else 1,
        top_groups=fields.size("topk_group") if grouped else 1,
        group_score="max",
        scaling=fields.number("routed_scaling_factor", default=1.0),
    )
    experts = _experts(fields, router, shared=2, intermediate=1407)
    dense = dense_ffn(fields, bias=fields.flag("mlp_bias", default=False))
    first = first_sparse(fields, 0)
    layers = [LayerSpec(attention, dense if i < first else experts) for i in range(layer_count(fields))]
    return assemble(fields, layers, Defaults(bos=1, eos=2), architecture="DeepseekV2ForCausalLM", outer=outer)


def read_mla_rope(fields: Fields, *, interleaved: bool = True) -> RopeSpec:
    return rope_spec(fields, fields.size("qk_rope_head_dim", default=64), interleaved=interleaved)


def read_mla(fields: Fields, rope: RopeSpec | None, indexer: IndexerSpec | None = None) -> AttentionSpec:
    """The latent attention layer. Under yarn the scale grows by mscale², where `mscale_all_dim` is given."""
    mla = MlaSpec(
        q_lora_rank=fields.optional_size("q_lora_rank") if fields.stated("q_lora_rank") else 1536,
        kv_lora_rank=fields.size("kv_lora_rank", default=512),
        qk_nope_dim=fields.size("qk_nope_head_dim", default=128),
        qk_rope_dim=fields.size("qk_rope_head_dim", default=64),
        v_dim=fields.size("v_head_dim", default=128),
    )
    width = mla.qk_nope_dim + mla.qk_rope_dim
    heads = fields.size("num_attention_heads")
    bias = fields.flag("attention_bias", default=False)
    scale = width**-0.5
    if rope is not None and rope.kind != "default" and rope.mscale_all_dim:
        scale *= yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2
    return AttentionSpec(
        kind="mla",
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        v_head_dim=mla.v_dim,
        scale=scale,
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
        mla=mla,
        indexer=indexer,
    )


def _deepseek(
    fields: Fields,
    outer: Fields | None,
    attentions: Sequence[AttentionSpec],
    architecture: str,
    *,
    max_position: int,
    groups: int = 8,
) -> ModelSpec:
    experts = _experts(fields, read_sigmoid_router(fields, groups=groups), shared=1, intermediate=2048)
    dense = dense_ffn(fields, bias=fields.flag("mlp_bias", default=False))
    layers = [
        LayerSpec(attention, experts if sparse else dense)
        for attention, sparse in zip(attentions, _sparse(fields), strict=True)
    ]
    extra = fields.size("num_nextn_predict_layers", "num_mtp_layers", default=0, minimum=0, maximum=64)
    mtp = MtpSpec(extra, LayerSpec(attentions[-1], experts)) if extra else None
    defaults = Defaults(bos=0, eos=1, max_position=max_position)
    return assemble(fields, layers, defaults, architecture=architecture, outer=outer, mtp=mtp)


def read_sigmoid_router(fields: Fields, *, groups: int) -> RouterSpec:
    """DeepSeek-V3's router: sigmoid scores, groups scored by their best two, a bias for choosing only."""
    count = fields.size("n_routed_experts", "num_local_experts", "num_experts", default=256)
    in_groups = fields.size("n_group", "num_expert_group", default=groups)
    if count % in_groups:
        raise fields.error("n_group", in_groups, f"a divisor of the number of experts ({count})")
    return RouterSpec(
        experts=count,
        top_k=fields.size("num_experts_per_tok", "num_experts_per_token", default=8, maximum=count),
        scoring="sigmoid",
        normalize=fields.flag("norm_topk_prob", "moe_renormalize", default=True),
        groups=in_groups,
        top_groups=fields.size("topk_group", default=4 if groups == 8 else 1, maximum=in_groups),
        correction_bias=True,
        scaling=fields.number("routed_scaling_factor", default=2.5),
    )


def _experts(fields: Fields, router: RouterSpec, *, shared: int, intermediate: int) -> FfnSpec:
    width = fields.size("moe_intermediate_size", default=intermediate)
    return FfnSpec(
        kind="moe",
        intermediate=width,
        activation=read_activation(fields),
        router=router,
        shared_intermediate=width
        * fields.size("n_shared_experts", "num_shared_experts", default=shared, minimum=0),
    )


def _sparse(fields: Fields) -> list[bool]:
    """Which layers have experts: `mlp_layer_types`, or all after the first `first_k_dense_replace`."""
    count = layer_count(fields)
    words = fields.words("mlp_layer_types")
    if words is not None:
        if len(words) != count or not set(words) <= {"dense", "sparse"}:
            raise fields.error("mlp_layer_types", words, f"a list of {count} words, dense or sparse")
        return [word == "sparse" for word in words]
    first = first_sparse(fields, 3)
    return [index >= first for index in range(count)]


def read_indexer(fields: Fields, heads: int, top_k: int = 2048) -> IndexerSpec:
    return IndexerSpec(
        heads=fields.size("index_n_heads", default=heads),
        dim=fields.size("index_head_dim", default=128),
        top_k=fields.size("index_topk", default=top_k),
    )


def _indexer_types(fields: Fields) -> list[str]:
    """`full` or `shared` for each layer: listed, as a pattern of F and S, or every n-th after an offset."""
    count = layer_count(fields)
    kinds = {"full": "full", "shared": "shared", "F": "full", "S": "shared"}
    pattern = fields.values.get("index_topk_pattern")
    listed = fields.words("indexer_types") or (tuple(pattern) if isinstance(pattern, str) else None)
    if listed is None:
        every = fields.size("index_topk_freq", default=1)
        offset = fields.size("index_skip_topk_offset", default=2, minimum=0)
        return ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(count)]
    if len(listed) != count or not set(listed) <= set(kinds):
        raise fields.error("indexer_types", listed, f"{count} entries, each full or shared")
    return [kinds[word] for word in listed]
