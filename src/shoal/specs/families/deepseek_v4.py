"""DeepSeek-V4: a window of recent tokens plus compressed entries for the rest, and several residual streams."""

from collections.abc import Mapping

from shoal.specs.families.common import Defaults, assemble, layer_count, layer_types, read_activation
from shoal.specs.families.deepseek import read_indexer
from shoal.specs.fields import MAX_LAYERS, Fields
from shoal.specs.model import (
    AttentionSpec,
    CompressionSpec,
    FfnSpec,
    LayerSpec,
    ModelSpec,
    MtpSpec,
    RopeSpec,
    RouterSpec,
)
from shoal.specs.rope import rope_spec

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
# `compress_ratios` of published configs, one number a layer.
_BY_RATIO: Mapping[int, str] = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}


def parse_deepseek_v4(fields: Fields, outer: Fields | None) -> ModelSpec:
    """The first layers route by a table of token ids; others by sqrt(softplus) scores with a correction bias."""
    types = layer_types(_with_types(fields), (), (_SLIDING, _SPARSE, _HEAVY))
    attentions = {kind: _attention(fields, kind) for kind in set(types)}
    hashed = fields.size("num_hash_layers", default=3, minimum=0, maximum=MAX_LAYERS)
    by_hash, by_score = _experts(fields, hashed=True), _experts(fields, hashed=False)
    layers = [LayerSpec(attentions[kind], by_hash if i < hashed else by_score) for i, kind in enumerate(types)]
    extra = fields.size("num_nextn_predict_layers", default=1, minimum=0, maximum=64)
    mtp = MtpSpec(extra, LayerSpec(_attention(fields, _SLIDING), by_score), own_embeddings=False) if extra else None
    return assemble(
        fields,
        layers,
        Defaults(bos=0, eos=1, max_position=1_048_576),
        architecture="DeepseekV4ForCausalLM",
        outer=outer,
        mtp=mtp,
        residual_streams=fields.size("hc_mult", default=4),
    )


def _with_types(fields: Fields) -> Fields:
    """Layer types as listed, from the ratios, or two heavy ones and then sparse and heavy in turn."""
    count = layer_count(fields)
    if fields.words("layer_types") is not None:
        return fields
    ratios = fields.integers("compress_ratios")
    if ratios is None:
        types = [_SPARSE if i >= 2 and i % 2 else _HEAVY for i in range(count)]
    else:
        unknown = sorted(set(ratios) - set(_BY_RATIO))
        if unknown or len(ratios) < count:
            raise fields.error("compress_ratios", ratios, f"at least {count} numbers, each 0, 4 or 128")
        # The list goes on past the layers: its tail is for the multi-token-prediction ones.
        types = [_BY_RATIO[ratio] for ratio in ratios[:count]]
    return Fields({**fields.values, "layer_types": types[:count]}, fields.model)


def _attention(fields: Fields, kind: str) -> AttentionSpec:
    rates = fields.section("compress_rates")
    default = {_SLIDING: 0, _SPARSE: 4, _HEAVY: 128}[kind]
    ratio = rates.size(kind, default=default, minimum=0) if rates is not None else default
    head_dim = fields.size("head_dim", default=512)
    return AttentionSpec(
        kind="compressed",
        heads=fields.size("num_attention_heads"),
        kv_heads=1,
        head_dim=head_dim,
        v_head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=_rope(fields, head_dim, compressed=ratio > 0),
        window=fields.size("sliding_window", default=128),
        sinks=True,
        value_from_key=True,
        compression=CompressionSpec(
            q_lora_rank=fields.size("q_lora_rank", default=1024),
            o_lora_rank=fields.size("o_lora_rank", default=1024),
            o_groups=fields.size("o_groups", default=8),
            ratio=ratio,
            overlap=kind == _SPARSE,
        ),
        indexer=read_indexer(fields, 64, top_k=512) if kind == _SPARSE else None,
    )


def _rope(fields: Fields, head_dim: int, *, compressed: bool) -> RopeSpec:
    """Window-only layers rotate plainly; compressed ones with yarn and their own base, cos and sin unscaled."""
    section = fields.section("rope_parameters") or fields.section("rope_scaling")
    partial = fields.number("partial_rotary_factor")
    if partial is None:
        partial = fields.size("qk_rope_head_dim", default=64) / head_dim
    label = "compress" if compressed else "main"
    stated = section.section(label) if section is not None else None
    values: dict[str, object] = {}
    if stated is not None:
        values.update(stated.values)
    elif compressed:
        values.update(section.values if section is not None else {})
        values["rope_theta"] = fields.number("compress_rope_theta", default=160_000.0)
    else:
        values["rope_theta"] = fields.number("rope_theta", default=10_000.0)
    if values.get("rope_type", values.get("type")) == "yarn":
        values.setdefault("attention_factor", 1.0)
    rope: dict[str, object] = {"rope_parameters": values, "partial_rotary_factor": partial}
    rope["max_position_embeddings"] = fields.size("max_position_embeddings", default=1_048_576)
    return rope_spec(Fields(rope, fields.model), head_dim, interleaved=True)


def _experts(fields: Fields, *, hashed: bool) -> FfnSpec:
    width = fields.size("moe_intermediate_size", default=2048)
    count = fields.size("n_routed_experts", "num_local_experts", default=256)
    scoring = {"sqrtsoftplus": "sqrtsoftplus", "sigmoid": "sigmoid", "softmax": "softmax"}
    router = RouterSpec(
        experts=count,
        top_k=fields.size("num_experts_per_tok", default=6, maximum=count),
        scoring=fields.choice("scoring_func", options=scoring, default="sqrtsoftplus"),  # type: ignore[arg-type]
        correction_bias=not hashed,
        scaling=fields.number("routed_scaling_factor", default=1.5),
        hashed=hashed,
    )
    return FfnSpec(
        kind="moe",
        intermediate=width,
        activation=read_activation(fields),
        router=router,
        shared_intermediate=width * fields.size("n_shared_experts", default=1, minimum=0),
        swiglu_limit=fields.number("swiglu_limit", default=10.0),
    )
