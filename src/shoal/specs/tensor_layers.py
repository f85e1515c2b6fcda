"""The tensors of one layer and of the model around the layers, as `specs.tensors` lists them."""

from collections.abc import Iterator

from shoal.specs.model import AttentionSpec, CompressionSpec, FfnSpec, LayerSpec, ModelSpec
from shoal.specs.tensor_group import Part, Shard, TensorGroup

_LAYER = "model.layers.{layer}."


def model_groups(spec: ModelSpec) -> Iterator[TensorGroup]:
    """Embedding, final norm, head, and what closes several residual streams."""
    vocab, hidden = spec.vocab, spec.hidden
    yield TensorGroup("model.embed_tokens.weight", (vocab, hidden), "embedding", shard="vocab", units=vocab)
    yield TensorGroup("model.norm.weight", (hidden,), "norms", dtype=_norm_dtype(spec))
    if not spec.tied_embeddings:
        yield TensorGroup(
            "lm_head.weight", (vocab, hidden), "lm_head", shard="vocab", units=vocab, quantizable=True
        )
    streams = spec.residual_streams
    if streams > 1:
        yield _residual("model.hc_head.hc_fn", (streams, streams * hidden))
        yield _residual("model.hc_head.hc_base", (streams,))
        yield _residual("model.hc_head.hc_scale", (1,))
    if spec.residual_attention:
        yield TensorGroup("model.output_attn_res_norm.weight", (hidden,), "residual")
        yield TensorGroup("model.output_attn_res_proj.weight", (1, hidden), "residual")


def layer_groups(spec: ModelSpec, layer: LayerSpec) -> Iterator[TensorGroup]:
    """One layer's tensors, without their layer indices."""
    hidden = spec.hidden
    attention = {"gqa": _gqa, "mla": _mla, "linear": _linear, "compressed": _compressed}[layer.attention.kind]
    yield from attention(layer.attention, hidden)
    yield from _ffn(layer.ffn, hidden, spec.vocab)
    names = ["input_layernorm", "post_attention_layernorm"]
    if spec.norm.sandwich:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if layer.ffn.beside_dense:
        names += ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"]
    for name in names:
        yield TensorGroup(f"{_LAYER}{name}.weight", (hidden,), "norms", dtype=_norm_dtype(spec))
    if spec.norm.layer_scalar:
        yield TensorGroup(_LAYER + "layer_scalar", (1,), "norms", parameter=False)
    yield from _residual_mixers(spec)


def _norm_dtype(spec: ModelSpec) -> str | None:
    return "float32" if spec.residual_streams > 1 else None


def _residual(name: str, shape: tuple[int, ...]) -> TensorGroup:
    return TensorGroup(name, shape, "residual", dtype="float32")


def _residual_mixers(spec: ModelSpec) -> Iterator[TensorGroup]:
    streams, hidden = spec.residual_streams, spec.hidden
    if streams > 1:
        # One row a pair of streams, and one each for reading and writing.
        mixes = streams * (streams + 2)
        for site in ("attn_hc", "ffn_hc"):
            yield _residual(f"{_LAYER}{site}.fn", (mixes, streams * hidden))
            yield _residual(f"{_LAYER}{site}.base", (mixes,))
            yield _residual(f"{_LAYER}{site}.scale", (3,))
    if spec.residual_attention:
        for site in ("self_attention", "mlp"):
            yield TensorGroup(f"{_LAYER}{site}_res_norm.weight", (hidden,), "residual")
            yield TensorGroup(f"{_LAYER}{site}_res_proj.weight", (1, hidden), "residual")


def _linear_layer(
    name: str,
    out: int,
    into: int,
    part: Part,
    shard: Shard = "replicated",
    units: int = 1,
    *,
    bias: bool = False,
    quantizable: bool = True,
) -> Iterator[TensorGroup]:
    """A projection's weight [out, into] and bias [out]; a row-split one's bias is added once, after the sum."""
    weight = f"{_LAYER}{name}.weight"
    yield TensorGroup(weight, (out, into), part, shard=shard, units=units, quantizable=quantizable)
    if bias:
        split: Shard = "replicated" if shard == "row" else shard
        yield TensorGroup(f"{_LAYER}{name}.bias", (out,), part, shard=split, units=units)


def _attention_layer(
    name: str, out: int, into: int, shard: Shard = "replicated", units: int = 1, *, bias: bool = False
) -> Iterator[TensorGroup]:
    yield from _linear_layer(f"self_attn.{name}", out, into, "attention", shard, units, bias=bias)


def _small(name: str, shape: tuple[int, ...], part: Part = "attention", **changes: object) -> TensorGroup:
    return TensorGroup(f"{_LAYER}self_attn.{name}", shape, part, **changes)  # type: ignore[arg-type]


def _gqa(spec: AttentionSpec, hidden: int) -> Iterator[TensorGroup]:
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    gated = 2 if spec.output_gate else 1
    yield from _attention_layer("q_proj", gated * query, hidden, "column", spec.heads, bias=spec.qkv_bias)
    yield from _attention_layer("k_proj", key, hidden, "kv", spec.kv_heads, bias=spec.qkv_bias)
    if not spec.value_from_key:
        value = spec.kv_heads * spec.v_head_dim
        yield from _attention_layer("v_proj", value, hidden, "kv", spec.kv_heads, bias=spec.qkv_bias)
    yield from _attention_layer(
        "o_proj", hidden, spec.heads * spec.v_head_dim, "row", spec.heads, bias=spec.out_bias
    )
    if spec.qk_norm == "head":
        yield _small("q_norm.weight", (spec.head_dim,), "norms")
        yield _small("k_norm.weight", (spec.head_dim,), "norms")
    elif spec.qk_norm == "full":
        yield _small("q_norm.weight", (query,), "norms", shard="column", units=spec.heads)
        yield _small("k_norm.weight", (key,), "norms", shard="kv", units=spec.kv_heads)
    if spec.sinks:
        yield _small("sinks", (spec.heads,), shard="column", units=spec.heads)


def _mla(spec: AttentionSpec, hidden: int) -> Iterator[TensorGroup]:
    mla = spec.mla
    assert mla is not None
    heads, query = spec.heads, spec.heads * (mla.qk_nope_dim + mla.qk_rope_dim)
    if mla.q_lora_rank is None:
        yield from _attention_layer("q_proj", query, hidden, "column", heads)
    else:
        yield from _attention_layer("q_a_proj", mla.q_lora_rank, hidden, bias=spec.qkv_bias)
        yield _small("q_a_layernorm.weight", (mla.q_lora_rank,), "norms")
        yield from _attention_layer("q_b_proj", query, mla.q_lora_rank, "column", heads)
    latent = mla.kv_lora_rank + mla.qk_rope_dim
    yield from _attention_layer("kv_a_proj_with_mqa", latent, hidden, bias=spec.qkv_bias)
    yield _small("kv_a_layernorm.weight", (mla.kv_lora_rank,), "norms")
    expanded = heads * (mla.qk_nope_dim + mla.v_dim)
    yield from _attention_layer("kv_b_proj", expanded, mla.kv_lora_rank, "column", heads)
    yield from _attention_layer("o_proj", hidden, heads * mla.v_dim, "row", heads, bias=spec.out_bias)
    if spec.output_gate:
        yield from _attention_layer("g_proj", heads * mla.v_dim, hidden, "column", heads)
    if spec.indexer is not None:
        index = spec.indexer
        yield from _attention_layer("indexer.wq_b", index.heads * index.dim, mla.q_lora_rank or hidden)
        yield from _attention_layer("indexer.wk", index.dim, hidden)
        yield _small("indexer.k_norm.weight", (index.dim,), "norms")
        yield _small("indexer.k_norm.bias", (index.dim,), "norms")
        yield _small("indexer.weights_proj.weight", (index.heads, hidden))


def _linear(spec: AttentionSpec, hidden: int) -> Iterator[TensorGroup]:
    state = spec.linear
    assert state is not None
    yield from (_kda if state.variant == "kda" else _gated_delta_net)(spec, hidden)


def _gated_delta_net(spec: AttentionSpec, hidden: int) -> Iterator[TensorGroup]:
    state = spec.linear
    assert state is not None
    units = state.key_heads
    value = state.value_heads * state.value_dim
    mixed = 2 * state.key_heads * state.key_dim + value
    name = "linear_attn."
    for projection, out in (("qkv", mixed), ("z", value), ("b", state.value_heads), ("a", state.value_heads)):
        quantizable = projection in ("qkv", "z")
        yield from _linear_layer(
            f"{name}in_proj_{projection}", out, hidden, "attention", "column", units, quantizable=quantizable
        )
    yield from _linear_layer(name + "out_proj", hidden, value, "attention", "row", units)
    for extra, shape in (
        ("conv1d.weight", (mixed, 1, state.kernel)),
        ("dt_bias", (state.value_heads,)),
        ("A_log", (state.value_heads,)),
    ):
        yield TensorGroup(f"{_LAYER}{name}{extra}", shape, "attention", shard="column", units=units)
    yield TensorGroup(f"{_LAYER}{name}norm.weight", (state.value_dim,), "norms")


def _kda(spec: AttentionSpec, hidden: int) -> Iterator[TensorGroup]:
    state = spec.linear
    assert state is not None
    heads, inner = state.value_heads, state.value_heads * state.value_dim
    for letter in "qkv":
        yield from _attention_layer(f"{letter}_proj", inner, hidden, "column", heads)
    yield _small("conv1d.weight", (3 * inner, 1, state.kernel), shard="column", units=heads)
    yield from _attention_layer("f_a_proj", state.key_dim, hidden)
    yield from _attention_layer("f_b_proj", inner, state.key_dim, "column", heads)
    yield _small("dt_bias", (inner,), shard="column", units=heads)
    yield _small("A_log", (heads,), shard="column", units=heads)
    yield from _attention_layer("b_proj", heads, hidden, "column", heads)
    if state.gate_rank is None:
        yield from _attention_layer("g_proj", inner, hidden, "column", heads)
    else:
        yield from _attention_layer("g_a_proj", state.gate_rank, hidden)
        yield from _attention_layer("g_b_proj", inner, state.gate_rank, "column", heads)
    yield _small("o_norm.weight", (state.value_dim,), "norms")
    yield from _attention_layer("o_proj", hidden, inner, "row", heads)


def _compressed(spec: AttentionSpec, hidden: int) -> Iterator[TensorGroup]:
    shape = spec.compression
    assert shape is not None
    wide = spec.heads * spec.head_dim
    grouped = shape.o_groups * shape.o_lora_rank
    yield from _attention_layer("q_a_proj", shape.q_lora_rank, hidden)
    yield _small("q_a_norm.weight", (shape.q_lora_rank,), "norms", dtype="float32")
    yield from _attention_layer("q_b_proj", wide, shape.q_lora_rank, "column", spec.heads)
    yield from _attention_layer("kv_proj", spec.head_dim, hidden)
    yield _small("kv_norm.weight", (spec.head_dim,), "norms", dtype="float32")
    yield from _attention_layer("o_a_proj", grouped, wide // shape.o_groups, "column", shape.o_groups)
    yield from _attention_layer("o_b_proj", hidden, grouped, "row", shape.o_groups)
    yield _small("sinks", (spec.heads,), shard="column", units=spec.heads, dtype="float32")
    if shape.ratio:
        yield from _compressor("compressor.", shape, spec.head_dim, hidden)
    if spec.indexer is not None:
        index, name = spec.indexer, "compressor.indexer."
        yield from _compressor(name, shape, index.dim, hidden)
        yield from _attention_layer(name + "q_b_proj", index.heads * index.dim, shape.q_lora_rank)
        yield _small(name + "scorer.weights_proj.weight", (index.heads, hidden))


def _compressor(name: str, shape: CompressionSpec, width: int, hidden: int) -> Iterator[TensorGroup]:
    """Overlapping windows are projected twice: once for each of the two windows that a token is in."""
    projected = 2 * width if shape.overlap else width
    yield from _attention_layer(name + "kv_proj", projected, hidden)
    yield from _attention_layer(name + "gate_proj", projected, hidden)
    yield _small(name + "position_bias", (shape.ratio, projected), dtype="float32")
    yield _small(name + "kv_norm.weight", (width,), "norms", dtype="float32")


def _mlp(name: str, width: int, hidden: int, part: Part, *, bias: bool = False) -> Iterator[TensorGroup]:
    for projection in ("gate_proj", "up_proj"):
        yield from _linear_layer(f"{name}.{projection}", width, hidden, part, "column", width, bias=bias)
    yield from _linear_layer(f"{name}.down_proj", hidden, width, part, "row", width, bias=bias)


def _ffn(spec: FfnSpec, hidden: int, vocab: int) -> Iterator[TensorGroup]:
    if spec.kind == "dense":
        yield from _mlp("mlp", spec.intermediate, hidden, "dense_ffn", bias=spec.bias)
        return
    yield from _router(spec, hidden, vocab)
    yield from _experts(spec, spec.latent or hidden)
    if spec.shared_intermediate:
        yield from _mlp("mlp.shared_experts", spec.shared_intermediate, hidden, "shared_experts")
        if spec.shared_gate:
            yield TensorGroup(_LAYER + "mlp.shared_expert_gate.weight", (1, hidden), "shared_experts")
    if spec.beside_dense:
        yield from _mlp("mlp", spec.beside_dense, hidden, "dense_ffn")
    if spec.latent:
        part: Part = "routed_experts"
        yield from _linear_layer("mlp.routed_expert_down_proj", spec.latent, hidden, part, quantizable=False)
        yield from _linear_layer("mlp.routed_expert_up_proj", hidden, spec.latent, part, quantizable=False)
        yield TensorGroup(_LAYER + "mlp.routed_expert_norm.weight", (spec.latent,), "norms")


def _router(spec: FfnSpec, hidden: int, vocab: int) -> Iterator[TensorGroup]:
    router = spec.router
    assert router is not None
    name = _LAYER + "mlp.gate."
    yield TensorGroup(name + "weight", (router.experts, hidden), "router")
    if router.bias:
        yield TensorGroup(name + "bias", (router.experts,), "router")
    if router.input_scale:
        yield TensorGroup(name + "scale", (hidden,), "router")
        yield TensorGroup(name + "per_expert_scale", (router.experts,), "router")
    if router.correction_bias:
        shape = (router.experts,)
        yield TensorGroup(name + "e_score_correction_bias", shape, "router", dtype="float32", parameter=False)
    if router.hashed:
        yield TensorGroup(name + "tid2eid", (vocab, router.top_k), "router", dtype="int64", parameter=False)


def _experts(spec: FfnSpec, into: int) -> Iterator[TensorGroup]:
    router, width = spec.router, spec.intermediate
    assert router is not None
    for projection, shape in (
        ("gate_proj", (width, into)),
        ("up_proj", (width, into)),
        ("down_proj", (into, width)),
    ):
        shard: Shard = "row" if projection == "down_proj" else "column"
        name = f"{_LAYER}mlp.experts.{{expert}}.{projection}"
        group = TensorGroup(
            f"{name}.weight",
            shape,
            "routed_experts",
            experts=router.experts,
            active=router.top_k,
            shard=shard,
            units=width,
            quantizable=True,
        )
        yield group
        if spec.experts_bias:
            split: Shard = "replicated" if shard == "row" else "column"
            yield TensorGroup(
                f"{name}.bias",
                shape[:1],
                "routed_experts",
                experts=router.experts,
                active=router.top_k,
                shard=split,
                units=width,
            )
