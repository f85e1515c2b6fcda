"""KV memory of a sequence, whatever its layers: GQA, MLA, windows, chunks, compressed and linear attention.

A sequence's KV on one device is piecewise linear in its length: each kind of layer adds a rate up to the length at
which it stops growing. `KvCurve` holds those pieces and inverts them exactly.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from shoal.specs.sizes import KvLayers, kv_layers
from shoal.specs.stages import StageRule, stage_layers

KV_DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1 + 2 / 64, "nvfp4": 0.5625}
)
"""Bytes of a cached element; nvfp4 carries an fp8 scale for every 16, int8 a bf16 one a head, here of 64."""

# The sparse-attention indexers of DeepSeek-V3.2 and V4 keep their keys in fp8 with one float32 scale for 128.
INDEXER_BYTES = 1 + 4 / 128


_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16", "float32": "fp32", "f32": "fp32",
        "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "e4m3": "fp8", "e5m2": "fp8", "float8": "fp8", "fp8_e4m3fn": "fp8",
        "float8_e4m3fn": "fp8", "fp4": "nvfp4", "auto": "bf16", "q8_0": "int8",
    }
)  # fmt: skip
"""What engines call their caches: both float8 layouts take one byte, `auto` is the model's own 16 bits."""


def kv_dtype_name(dtype: str, field: str = "kv_dtype") -> str:
    """The cache dtype that a text names, as in `KV_DTYPE_BYTES`; raises `SpecError` for one that no engine has."""
    folded = dtype.strip().lower().replace("-", "_").replace(" ", "_")
    name = _ALIASES.get(folded, folded)
    if name not in KV_DTYPE_BYTES:
        raise SpecError(field, dtype, f"one of {', '.join(KV_DTYPE_BYTES)}, fp8_e4m3, fp8_e5m2 or auto (bf16)")
    return name


def kv_dtype_bytes(dtype: str, field: str = "kv_dtype") -> float:
    """Bytes of an element of a cache of this dtype; raises `SpecError` for one that no engine has."""
    if dtype in KV_DTYPE_BYTES:
        return KV_DTYPE_BYTES[dtype]
    return KV_DTYPE_BYTES[kv_dtype_name(dtype, field)]


@dataclass(frozen=True, slots=True)
class KvCurve:
    """Bytes of one sequence's KV on one device: constant + Σ rate·min(length, cap)."""

    constant: float
    """Bytes whatever the length (recurrent states)."""
    pieces: tuple[tuple[float, float], ...]
    """(bytes a token, length at which it stops growing), caps ascending; the last cap may be infinite."""

    def bytes(self, length: float) -> float:
        """Bytes of a sequence of `length` tokens."""
        total = self.constant
        for rate, cap in self.pieces:
            total += rate * (length if length < cap else cap)
        return total

    @property
    def rate(self) -> float:
        """Bytes each token adds as long as no layer has stopped growing."""
        return sum(rate for rate, _ in self.pieces)

    @property
    def final_rate(self) -> float:
        """Bytes each token adds once every bounded layer is full."""
        return sum(rate for rate, cap in self.pieces if math.isinf(cap))

    def length(self, budget: float) -> float:
        """The longest sequence, in tokens, that fits in `budget` bytes; 0: none, inf: any."""
        left = budget - self.constant
        if left < 0 or not self.pieces:
            return 0.0 if left < 0 else math.inf
        rate, reached = self.rate, 0.0
        for step, cap in self.pieces:
            needed = rate * (cap - reached)
            if left < needed or math.isinf(cap):
                return reached + left / rate
            left -= needed
            reached = cap
            rate -= step
        return math.inf


def curve_of(model: ModelSpec, stage: range, tp: int, cp: int, element: float) -> KvCurve:
    """The curve of a stage's layers on the fullest device of a tp x cp group, with elements of `element` bytes."""
    constant = 0.0
    rates: dict[float, float] = {}
    for kind in kv_layers(model):
        count = sum(1 for layer in kind.layers if layer in stage)
        if not count:
            continue
        # Heads are dealt out whole, and copied where ranks outnumber them; a latent is every rank's own.
        share = 1.0 if kind.kv_heads is None else -(-kind.kv_heads // min(tp, kind.kv_heads)) / kind.kv_heads
        constant += count * share * kind.state_bytes
        for rate, cap in _pieces(kind, share, element):
            rates[cap] = rates.get(cap, 0.0) + count * rate / cp
    return KvCurve(constant, tuple((rates[cap], cap) for cap in sorted(rates) if rates[cap] > 0))


def _pieces(kind: KvLayers, share: float, element: float) -> list[tuple[float, float]]:
    """(bytes a token, cap) of one layer."""
    kept, indexer = kind.elements * share * element, kind.indexer_elements * INDEXER_BYTES
    cap = math.inf if kind.bound is None else float(kind.bound)
    if not kind.ratio:
        return [(kept, cap), (indexer, math.inf)]
    return [(kept, cap), ((kept + indexer) / kind.ratio, math.inf)]


def stages(model: ModelSpec, pp: int, rule: StageRule = "even") -> tuple[range, ...]:
    """Layers of each pipeline stage, as an engine of this rule deals them."""
    return stage_layers(model, pp) if rule == "cost" else even_stages(len(model.layers), pp)


def even_stages(layers: int, pp: int) -> tuple[range, ...]:
    """Equal numbers of layers; those left over go to the stages before the last, which has the output head (vLLM's
    rule, engine version 0.9 and later)."""
    base, extra = divmod(layers, pp)
    counts = [base] * pp
    for index in range(extra):
        counts[-2 - index if pp > 1 else 0] += 1
    starts = [sum(counts[:index]) for index in range(pp)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))


@functools.lru_cache(maxsize=4096)
def stage_curves(model: ModelSpec, layout: Layout, dtype: str, rule: StageRule = "even") -> tuple[KvCurve, ...]:
    """One curve a pipeline stage: KV of one sequence on that stage's fullest device."""
    element = kv_dtype_bytes(dtype)
    return tuple(curve_of(model, stage, layout.tp, layout.cp, element) for stage in stages(model, layout.pp, rule))


@functools.lru_cache(maxsize=1024)
def sequence_curve(model: ModelSpec, dtype: str = "bf16") -> KvCurve:
    """KV of one sequence over all layers, held once: what a hand-off moves."""
    return curve_of(model, range(len(model.layers)), 1, 1, kv_dtype_bytes(dtype))


def kv_bytes_per_token(model: ModelSpec, dtype: str = "bf16") -> float:
    """Bytes a token adds in the layers that keep every token; windows, chunks and states are not in it."""
    return sequence_curve(model, dtype).final_rate
