"""What one token costs a model, in operations and bytes, before any machine is chosen.

`model_work` adds up a `ModelSpec` once; everything after is arithmetic on the sums, so that an estimate costs
microseconds. A model that is not known is guessed from the sizes in its name (`guess_work`), and says so.

Weights are those of `specs.tensors` that a token multiplies in a layer's products: matrices, without routers, norms
and what mixes residual streams. KV is counted by `specs.sizes`.
"""

import re
from dataclasses import dataclass

from shoal.specs.model import AttentionSpec, ModelSpec
from shoal.specs.sizes import KvLayers, kv_layers
from shoal.specs.tensors import part_sizes, tensor_groups


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Sums over a model's layers. Weights are element counts; `_ops` are FLOPs."""

    name: str
    hidden: int
    layers: int
    moe_layers: int
    attention_weights: float
    """Projections of attention (and of linear-attention) layers, those of an indexer included."""
    dense_weights: float
    """Dense FFNs, shared experts, and the projections that routed experts have in common."""
    expert_weights: float
    """One routed expert, summed over the layers that have experts."""
    experts: int
    """Routed experts a layer; 1 = none."""
    top_k: int
    head_weights: float
    """The output projection."""
    embedding_weights: float
    """Input embedding, 0 where it is tied to the output projection."""
    kv_elements: float
    """Elements cached a token by layers that keep the whole context."""
    kv_replicated: bool
    """The cache cannot be split over tensor-parallel ranks (MLA)."""
    kv_heads: int
    window: float
    """Tokens that the layers with a bounded context keep (their mean), 0 = no such layers."""
    window_elements: float
    """Elements cached a token, inside the window, by those layers."""
    state_elements: float
    """Elements of recurrent state a sequence, all layers."""
    decode_ops: float
    """Attention FLOPs of one new token for each cached token (MLA: absorbed form)."""
    prefill_ops: float
    """Attention FLOPs of one prompt token for each earlier token."""
    attended: float
    """Most tokens that full-context layers attend to (sparse attention); infinite where all."""
    native: str
    """Precision that the checkpoint is published in: `bf16`, `fp8`, `mxfp4`, `nvfp4`, `int4`, …"""
    guessed: bool = False

    @property
    def total_weights(self) -> float:
        routed = self.expert_weights * self.experts if self.top_k else 0.0
        return self.attention_weights + self.dense_weights + routed + self.head_weights + self.embedding_weights


def _native(spec: ModelSpec) -> str:
    quantization = spec.quantization
    if quantization is None:
        return "bf16"
    method = quantization.method
    for known in ("nvfp4", "mxfp4", "fp8", "int8", "int4"):
        if known in method:
            return known
    return "int4" if quantization.bits < 6 else "fp8" if quantization.bits < 12 else "bf16"


def model_work(spec: ModelSpec) -> ModelWork:
    """The sums for `spec`. Multi-token-prediction heads are not counted: engines load them only to speculate."""
    hidden, moe = spec.hidden, [x.ffn for x in spec.layers if x.ffn.kind == "moe"]
    router = moe[0].router if moe else None
    attentions = [x.attention for x in spec.layers if x.attention.kind != "linear"]
    full = [a for a in attentions if (a.window is None and a.chunk is None) or a.compression is not None]
    cached = [kind for kind in kv_layers(spec) if kind.kind != "state"]
    states = [x.attention.linear for x in spec.layers if x.attention.linear is not None]
    windows = [float(kind.bound) for kind in cached if kind.bound is not None for _ in kind.layers]
    matrices = [group for group in tensor_groups(spec) if len(group.shape) == 2 and group.dtype is None]
    parts = part_sizes((group.part, group.total()) for group in matrices if group.experts == 1)
    experts = sum(group.total() / group.experts for group in matrices if group.experts > 1)
    chosen = [a.indexer.top_k for a in full if a.indexer is not None]
    return ModelWork(
        name=spec.name,
        hidden=hidden,
        layers=len(spec.layers),
        moe_layers=len(moe),
        attention_weights=float(parts.attention),
        dense_weights=float(parts.dense_ffn + parts.shared_experts + parts.routed_experts),
        expert_weights=experts,
        experts=router.experts if router else 1,
        top_k=router.top_k if router else 0,
        head_weights=float(parts.lm_head or parts.embedding),
        embedding_weights=0.0 if spec.tied_embeddings else float(parts.embedding),
        kv_elements=float(sum(_unbounded_elements(kind) * len(kind.layers) for kind in cached)),
        kv_replicated=any(kind.kv_heads is None for kind in cached),
        kv_heads=max((kind.kv_heads for kind in cached if kind.kv_heads is not None), default=1),
        window=sum(windows) / len(windows) if windows else 0.0,
        window_elements=float(sum(kind.elements * len(kind.layers) for kind in cached if kind.bound is not None)),
        state_elements=float(sum(s.state_elements + s.conv_elements for s in states)),
        decode_ops=float(sum(_decode_ops(a) * _kept(a) for a in full)),
        prefill_ops=float(sum(_prefill_ops(a) * _kept(a) for a in full)),
        attended=float(max(chosen)) if chosen else float("inf"),
        native=_native(spec),
    )


def _kept(a: AttentionSpec) -> float:
    """Entries that a layer without a bound keeps for each token: fewer than one where tokens are summarized."""
    if a.compression is None:
        return 1.0
    return 1.0 / a.compression.ratio if a.compression.ratio else 0.0


def _unbounded_elements(kind: KvLayers) -> float:
    """Elements that one layer adds per token of a long sequence; a latent's with the indexer's key."""
    if kind.ratio:
        return kind.elements / kind.ratio
    if kind.bound is not None:
        return 0.0
    return kind.elements + (kind.indexer_elements if kind.kind == "latent" else 0)


def _decode_ops(a: AttentionSpec) -> float:
    if a.mla is not None:
        return 2.0 * a.heads * (2 * a.mla.kv_lora_rank + a.mla.qk_rope_dim)
    return 2.0 * a.heads * (a.head_dim + a.v_head_dim)


def _prefill_ops(a: AttentionSpec) -> float:
    if a.mla is not None:
        return 2.0 * a.heads * (a.mla.qk_nope_dim + a.mla.qk_rope_dim + a.mla.v_dim)
    return 2.0 * a.heads * (a.head_dim + a.v_head_dim)


_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b", re.IGNORECASE)
_DEFAULT_BILLIONS = 70.0


def guess_work(name: str) -> ModelWork:
    """A stand-in for a model nobody described: the sizes in its name ("120B-A12B"), shaped like its peers.

    Width and depth follow the usual proportion of transformers, parameters ≈ 12·layers·hidden². Without a size in
    the name it is taken for a dense 70B. `guessed` is set, so that whoever uses it widens the interval.
    """
    active_match = _ACTIVE.search(name)
    sizes = [float(count or 1) * float(size) for count, size in _SIZE.findall(name)]
    total = max(sizes, default=_DEFAULT_BILLIONS) * 1e9
    active = min(float(active_match[1]) * 1e9 if active_match else total, total)
    hidden = int(128 * max(4, round((active / (12 * 0.012)) ** (1 / 3) / 128)))
    layers = max(8, round(active / (12.0 * hidden * hidden)))
    sparse = active < 0.8 * total
    head_dim, kv_heads = 128, 8
    attention = layers * hidden * (2.0 * hidden + 2 * kv_heads * head_dim)
    head = hidden * 128_000.0
    rest = max(active - attention - head, 0.2 * active)
    top_k, experts = (8, max(16, round((total - attention - head) / rest * 8))) if sparse else (0, 1)
    ops = 4.0 * hidden * layers
    return ModelWork(
        name=name, hidden=hidden, layers=layers, moe_layers=layers if sparse else 0, attention_weights=attention,
        dense_weights=0.0 if sparse else rest, expert_weights=rest / top_k if sparse else 0.0, experts=experts,
        top_k=top_k, head_weights=head, embedding_weights=head, kv_elements=2.0 * layers * kv_heads * head_dim,
        kv_replicated=False, kv_heads=kv_heads, window=0.0, window_elements=0.0, state_elements=0.0,
        decode_ops=ops, prefill_ops=ops, attended=float("inf"), native="bf16", guessed=True,
    )  # fmt: skip
