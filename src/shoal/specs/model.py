"""The nouns of a model: what its layers are made of, without a weight in sight.

`ModelSpec` is read from a Hugging Face `config.json` or from GGUF metadata by `specs.parse`; the engine builds
its modules from it, the planner counts with it. Both see the same numbers.

Units: sizes are element counts unless a name ends in `_bytes`. `head_dim` is the width of one query/key head.
"""

from dataclasses import dataclass, field, fields
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
AttentionKind = Literal["gqa", "mla", "linear", "compressed"]
Activation = Literal["silu", "gelu", "gelu_tanh", "situ", "swiglu_oai"]
RouterScoring = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer (`rope_parameters`/`rope_scaling` in a config.json)."""

    kind: RopeKind
    theta: float
    dim: int
    """Width of a head that is rotated (partial rotary: less than `head_dim`)."""
    max_position: int
    """`max_position_embeddings`; dynamic and long-rope switch on it."""
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    interleaved: bool = False
    """Pairs are neighbours (2i, 2i+1) rather than halves (i, i + dim/2)."""
    rotated_dim: int | None = None
    """`proportional` only: channels with a frequency above zero; the frequencies are those of the full `dim`."""


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Multi-head latent attention: one compressed vector a token is cached (DeepSeek-V2, arXiv:2405.04434)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int
    norm_eps: float = 1e-6
    """Of the norms on the two latents, which isn't the model's own (Kimi-K2.5: 1e-6 against 1e-5)."""


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """The small scorer of sparse attention that picks which `top_k` keys a query sees (DeepSeek-V3.2).

    It caches one key of `dim` a token, or one a compressed entry in DeepSeek-V4.
    """

    heads: int
    dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class CompressionSpec:
    """DeepSeek-V4 attention: one latent that is key and value at once, cached for a window of recent tokens, plus
    one summary of every `ratio` tokens for the rest; low-rank queries and grouped low-rank outputs.
    """

    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    ratio: int
    """Source tokens an entry; 0: the layer has the window only."""
    overlap: bool = False
    """Windows of 2 · ratio tokens, a stride of ratio apart (the sparse kind, ratio 4)."""


@dataclass(frozen=True, slots=True)
class LinearStateSpec:
    """Recurrent state of a linear-attention layer: a constant a sequence, whatever its length."""

    variant: str
    """The family's own name: `gated_delta_net`, `kda`, `lightning`, `mamba2`."""
    state_elements: int
    """Recurrent state a sequence and layer; kept in float32 (`mamba_ssm_dtype`)."""
    conv_elements: int
    """Inputs of the short convolution a sequence and layer: kernel - 1 steps of each channel."""
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    kernel: int = 0
    gate_rank: int | None = None
    """Inner width of a low-rank output gate; None: full rank."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    kind: AttentionKind
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    """Multiplier of q·k before the softmax, usually head_dim ** -0.5."""
    rope: RopeSpec | None
    """None: a layer without positions (NoPE)."""
    window: int | None = None
    """A query at position p sees keys in (p - window, p]. None: all."""
    chunk: int | None = None
    """Llama-4 local attention: keys of the same `chunk`-sized piece only."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "full", "l2"] | None = None
    """RMS norm of q and k per head (Qwen3, Gemma 3) or over the whole projection (MiniMax); `l2` has no weight."""
    softcap: float | None = None
    sinks: bool = False
    """A learned logit a head that takes part in the softmax only (gpt-oss)."""
    output_gate: bool = False
    mla: MlaSpec | None = None
    linear: LinearStateSpec | None = None
    indexer: IndexerSpec | None = None
    compression: CompressionSpec | None = None
    value_from_key: bool = False
    """No value projection: values are the keys before norm and rotation (Gemma 4's full layers)."""
    value_norm: bool = False
    """An RMS norm without weight on every value head (Gemma 4)."""
    value_scale: float = 1.0
    """Multiplier of the values (MiMo-V2)."""
    temperature_floor: int | None = None
    """Llama-4 layers without positions: q is scaled by 1 + scale · ln(1 + ⌊(position + 1) / floor⌋)."""
    temperature_scale: float = 0.0


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """How a mixture-of-experts layer chooses."""

    experts: int
    top_k: int
    scoring: RouterScoring = "softmax"
    normalize: bool = True
    """Chosen weights are divided by their sum."""
    groups: int = 1
    top_groups: int = 1
    correction_bias: bool = False
    """A learned bias added to the scores for choosing only (DeepSeek-V3)."""
    scaling: float = 1.0
    bias: bool = False
    softmax_after_top_k: bool = False
    """The softmax is taken over the chosen logits only (gpt-oss)."""
    group_score: Literal["top2", "max"] = "top2"
    """A group's score is the sum of its best two (DeepSeek-V3) or its best (V2)."""
    scale_input: bool = False
    """The weight multiplies what goes into an expert, not what comes out (Llama-4)."""
    hashed: bool = False
    """Experts are looked up by token id in a stored [vocab, top_k] table; scores only weigh them (DeepSeek-V4)."""
    input_scale: bool = False
    """The router norms its input, multiplies it by a learned vector and hidden^-0.5, and the chosen weights by a
    learned scalar an expert (Gemma 4)."""


@dataclass(frozen=True, slots=True)
class FfnSpec:
    kind: Literal["dense", "moe"]
    intermediate: int
    """Inner width of the dense FFN, or of one routed expert."""
    activation: Activation
    bias: bool = False
    router: RouterSpec | None = None
    shared_intermediate: int = 0
    """Total inner width of the shared experts; 0 = none."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a learned sigmoid gate (Qwen2-MoE)."""
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.702
    """`swiglu_oai` only: gate · sigmoid(alpha · gate)."""
    experts_bias: bool = False
    """A bias on both projections of every expert (gpt-oss)."""
    beside_dense: int = 0
    """Inner width of a dense FFN that runs beside the experts, each branch with norms of its own (Gemma 4)."""
    latent: int = 0
    """Experts work on a projection of this width, down before and up after, with a norm (Kimi-K3); 0: on hidden."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention: AttentionSpec
    ffn: FfnSpec


@dataclass(frozen=True, slots=True)
class NormSpec:
    eps: float
    plus_one: bool = False
    """Weights are stored as an offset from one (Gemma)."""
    sandwich: bool = False
    """A second norm after attention and after the FFN, before the residual add (Gemma 2/3)."""
    layer_scalar: bool = False
    """A layer's output is multiplied by a stored scalar (Gemma 4)."""


@dataclass(frozen=True, slots=True)
class QuantizationSpec:
    """How a checkpoint's weights are stored, with the modules that are not."""

    method: str
    """`fp8`, `fp8_block`, `int8`, `int4`, `mxfp4`, `nvfp4`, `gguf`, … (see specs.quantization)."""
    bits: float
    """Mean bits a weight including its scales."""
    group: tuple[int, ...] = ()
    excluded: tuple[str, ...] = ()
    """Names or patterns of modules kept at the model's own dtype (`modules_to_not_convert`, `ignore`)."""
    experts_method: str | None = None
    """Another method for the routed experts (DeepSeek-V4: fp4 experts in an fp8 checkpoint)."""


@dataclass(frozen=True, slots=True)
class MtpSpec:
    """Multi-token-prediction layers that ship with a checkpoint; Transformers drops them and so do all totals."""

    layers: int
    layer: LayerSpec
    """Each is one more decoder layer, with a projection of [hidden, embedding] to hidden and two extra norms."""
    own_embeddings: bool = True
    """The checkpoint repeats the embedding and the output head for it (DeepSeek-V3)."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    name: str
    architecture: str
    """The `architectures[0]` of the config, e.g. `LlamaForCausalLM`."""
    model_type: str
    vocab: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tied_embeddings: bool
    max_position: int
    dtype: str
    """The checkpoint's own compute dtype: `bfloat16`, `float16`, `float32`."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    embedding_scale: float = 1.0
    """Embeddings are multiplied by this (Gemma: sqrt(hidden), rounded to the compute dtype)."""
    final_softcap: float | None = None
    quantization: QuantizationSpec | None = None
    mtp: MtpSpec | None = None
    residual_streams: int = 1
    """Copies of the residual that hyper-connections mix around every sublayer (DeepSeek-V4)."""
    residual_attention: int = 0
    """Sublayers attend over the outputs of earlier blocks of this many layers (Kimi-K3); 0: no."""
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        # Counting functions are cached on the spec and called thousands of times a second; hashing a hundred layers
        # each time would cost more than the counting.
        values = tuple(getattr(self, f.name) for f in fields(self) if f.compare)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["ModelSpec"], tuple[object, ...]]:
        # Strings hash differently in every process, so a pickled spec must compute its hash anew.
        return ModelSpec, tuple(getattr(self, f.name) for f in fields(self) if f.init)
