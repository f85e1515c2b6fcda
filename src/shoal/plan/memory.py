"""Where a device's memory goes under a layout, and what is left for KV: on every stage, and on the worst device.

Weights are exact: every tensor of the checkpoint, cut as the layout cuts it, with what is not cut held whole. What
an engine adds comes from its dated constants (`shoal.specs.catalog.engines`).
"""

import functools
import math
import operator
from dataclasses import dataclass
from typing import Literal

from shoal.plan.kv import KvCurve, stage_curves, stages
from shoal.specs.catalog.engines import EngineMemory
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec, QuantizationSpec
from shoal.specs.sizes import StoredGroup, stored_groups
from shoal.specs.stages import StageRule
from shoal.specs.traffic import MAX_TOKENS, positive

Verdict = Literal["fits", "weights do not fit", "no room for KV", "context does not fit", "batch does not fit"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step an engine provides for: activations are sized for it at start-up."""

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """One device's memory, in bytes: the fullest device of one pipeline stage."""

    stage: int
    """The first of the stages that are like this one."""
    device: float
    weights: float
    """With the buffers that a loaded model holds besides its checkpoint's tensors."""
    activation: float
    runtime: float
    """Driver, libraries and communicators, outside the framework's allocator."""
    graphs: float
    withheld: float
    """What the engine leaves unused, or reserves."""
    kv_room: float
    """Left for KV; negative where the rest does not fit."""
    curve: KvCurve
    """KV of one sequence on this device."""


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Memory of one replica: a breakdown for every kind of pipeline stage (like stages are one)."""

    stages: tuple[MemoryBreakdown, ...]
    layout: Layout

    @property
    def worst(self) -> MemoryBreakdown:
        """The device that runs out first: with the least room for KV, against what a long sequence takes there."""
        return min(self.stages, key=lambda stage: stage.kv_room / max(stage.curve.bytes(8192), 1.0))

    def max_batch(self, context: float) -> int:
        """The most sequences of `context` tokens that the replica holds at once; 0: not one."""
        positive("context", context, MAX_TOKENS)
        fewest = math.inf
        for stage in self.stages:
            needed = stage.curve.bytes(context)
            if needed > 0:
                fewest = min(fewest, stage.kv_room // needed)
        if fewest == math.inf:
            raise SpecError("model", "no layer keeps KV", "a model with attention layers")
        return max(0, int(fewest)) * self.layout.dp

    def max_context(self, batch: int = 1) -> float:
        """The longest context, in tokens, of which `batch` sequences fit at once; 0: none, inf: any."""
        positive("batch", batch, 1e9)
        held = -(-batch // self.layout.dp)
        return min(stage.curve.length(max(stage.kv_room, -1.0) / held) for stage in self.stages)

    def verdict(self, context: float, batch: int = 1) -> Verdict:
        """Whether an engine would start for `context` tokens and hold `batch` such sequences, or why not."""
        if any(stage.weights > stage.device for stage in self.stages):
            return "weights do not fit"
        if any(stage.kv_room <= 0 for stage in self.stages):
            return "no room for KV"
        most = self.max_batch(context)
        if most < 1:
            return "context does not fit"
        return "fits" if most >= batch else "batch does not fit"


def replica_memory(
    model: ModelSpec,
    layout: Layout,
    device_bytes: float,
    engine: EngineMemory,
    *,
    quantization: QuantizationSpec | str | None = None,
    kv_dtype: str = "bf16",
    fraction: float | None = None,
    step: StepShape | None = None,
    mtp: bool = False,
) -> ReplicaMemory:
    """Memory of a replica of `model` on devices of `device_bytes` (as the driver reports them).

    Args:
        quantization: how weights are stored, e.g. `fp8_block`; None: as in the checkpoint.
        fraction: the engine's own memory fraction (`gpu_memory_utilization`, `free_gpu_memory_fraction`,
            `mem_fraction_static`); None: the engine's default.
        step: the largest step provided for; None: the engine's default on such a device.
        mtp: the multi-token-prediction layers are loaded too, for speculation.

    Raises:
        SpecError: a fraction outside (0, 1], a device without memory, an unknown `kv_dtype`.
    """
    positive("device_bytes", device_bytes, 1e15)
    if fraction is not None and not 0 < fraction <= 1:
        raise SpecError("fraction", fraction, "a share above 0 and at most 1")
    if step is None:
        step = StepShape(*engine.defaults(device_bytes))
    return ReplicaMemory(
        tuple(
            _breakdown(model, layout, device_bytes, engine, fraction, step, kind)
            for kind in _stage_kinds(model, layout, quantization, engine.mxfp4_row, mtp, kv_dtype, engine.stages)
        ),
        layout,
    )


@dataclass(frozen=True, slots=True)
class _StageKind:
    """What stages that are alike hold."""

    first: int
    weights: float
    curve: KvCurve
    samples: bool
    """It is the last stage, whose ranks sample."""


@functools.lru_cache(maxsize=1 << 16)
def _stage_kinds(
    model: ModelSpec,
    layout: Layout,
    quantization: QuantizationSpec | str | None,
    mxfp4_row: int,
    mtp: bool,
    kv_dtype: str,
    rule: StageRule,
) -> tuple[_StageKind, ...]:
    weights = stage_weights(model, layout, quantization, mxfp4_row, mtp, rule)
    curves = stage_curves(model, layout, kv_dtype, rule)
    kinds: dict[tuple[float, KvCurve, bool], _StageKind] = {}
    for stage, (held, curve) in enumerate(zip(weights, curves, strict=True)):
        samples = stage == layout.pp - 1
        kinds.setdefault((held, curve, samples), _StageKind(stage, held, curve, samples))
    return tuple(kinds.values())


def _breakdown(
    model: ModelSpec,
    layout: Layout,
    device: float,
    engine: EngineMemory,
    fraction: float | None,
    step: StepShape,
    kind: _StageKind,
) -> MemoryBreakdown:
    weights = kind.weights + engine.rotary_element * rotary_elements(model)
    # Logits of all vocabulary shards are gathered on every rank of the last stage before sampling.
    logits = engine.activation_per_logit * step.sequences * model.vocab if kind.samples else 0.0
    activation = logits + engine.activation_per_token * step.tokens * model.hidden
    runtime = engine.runtime + (engine.communicator if layout.world > 1 else 0.0)
    share = engine.fraction if fraction is None else fraction
    used = weights + activation + runtime + engine.graphs
    if engine.budget == "total":
        withheld = (1 - share) * device
    elif engine.budget == "free":
        withheld = (1 - share) * max(0.0, device - used)
    else:
        withheld = (1 - share) * device if fraction is not None else _reserve(engine, layout, step, device)
    room = device - used - withheld
    return MemoryBreakdown(
        kind.first, device, weights, activation, runtime, engine.graphs, withheld, room, kind.curve
    )


def _reserve(engine: EngineMemory, layout: Layout, step: StepShape, device: float) -> float:
    reserve = (
        engine.reserve
        + engine.reserve_per_token * step.tokens
        + engine.reserve_per_sequence * step.sequences
        + engine.reserve_per_rank * layout.world
    )
    if layout.dp > 1:
        reserve += engine.reserve_per_dp_sequence * step.sequences * layout.dp
    return max(reserve, engine.reserve_floor) if device > engine.reserve_floor_device else reserve


@functools.lru_cache(maxsize=16384)
def stage_weights(
    model: ModelSpec,
    layout: Layout,
    quantization: QuantizationSpec | str | None = None,
    mxfp4_row: int = 1,
    mtp: bool = False,
    rule: StageRule = "even",
) -> tuple[float, ...]:
    """Bytes of weights on the fullest device of every pipeline stage. Cached.

    Args:
        quantization: how weights are stored; None: as in the checkpoint.
        mxfp4_row: see `EngineMemory`.
        mtp: with the multi-token-prediction layers, which lie on the last stage.
        rule: how the engine deals layers to stages.
    """
    held = _held(model, quantization, layout.tp, layout.ep, layout.moe_tp, mxfp4_row)
    totals = [sum(map(operator.mul, held, counts)) for counts in _placement(model, quantization, layout.pp, rule)]
    if mtp:
        for stored in stored_groups(model, quantization, mtp=True):
            each = _per_layer(model, stored, layout.tp, layout.ep, layout.moe_tp, mxfp4_row)
            totals[-1] += each * len(stored.group.layers)
    return tuple(totals)


@functools.lru_cache(maxsize=4096)
def _placement(
    model: ModelSpec, quantization: QuantizationSpec | str | None, pp: int, rule: StageRule
) -> tuple[tuple[int, ...], ...]:
    """For every stage, how often it has each of the model's stored groups."""
    groups = stored_groups(model, quantization)
    return tuple(
        tuple(
            sum(1 for layer in stored.group.layers if layer in layers)
            if stored.group.layers
            else int(stage in _homes(model, stored, pp))
            for stored in groups
        )
        for stage, layers in enumerate(stages(model, pp, rule))
    )


@functools.lru_cache(maxsize=16384)
def _held(
    model: ModelSpec, quantization: QuantizationSpec | str | None, tp: int, ep: int, moe_tp: int, mxfp4_row: int
) -> tuple[float, ...]:
    """Bytes of each stored group on the fullest rank, for one of its layers."""
    return tuple(
        _per_layer(model, stored, tp, ep, moe_tp, mxfp4_row) for stored in stored_groups(model, quantization)
    )


def _homes(model: ModelSpec, stored: StoredGroup, pp: int) -> tuple[int, ...]:
    """Stages that hold a tensor outside the layers: the embedding first, all else last; a tied embedding both."""
    if stored.group.part != "embedding":
        return (pp - 1,)
    return (0, pp - 1) if model.tied_embeddings and pp > 1 else (0,)


def _per_layer(model: ModelSpec, stored: StoredGroup, tp: int, ep: int, moe_tp: int, mxfp4_row: int) -> float:
    group = stored.group
    whole = float(stored.tensor_bytes * group.experts)
    if group.part == "routed_experts":
        experts = -(-group.experts // ep) / group.experts
        return whole * experts * _share(stored, moe_tp) * _padding(model, stored, moe_tp, mxfp4_row)
    return whole * _attention_share(model, stored, tp)


def _share(stored: StoredGroup, ranks: int) -> float:
    """Part of a tensor on the rank that holds most of it: whole units, at least one."""
    group = stored.group
    if group.shard == "replicated" or ranks == 1:
        return 1.0
    return -(-group.units // min(ranks, group.units)) / group.units


def _attention_share(model: ModelSpec, stored: StoredGroup, tp: int) -> float:
    """As `_share`; query heads that tp does not divide follow their KV heads, whole groups at a time."""
    group = stored.group
    if group.part == "attention" and group.shard in ("column", "row") and group.units % tp and group.layers:
        attention = model.layers[min(group.layers[0], len(model.layers) - 1)].attention
        if attention.kind == "gqa" and group.units == attention.heads:
            return -(-attention.kv_heads // min(tp, attention.kv_heads)) / attention.kv_heads
    return _share(stored, tp)


def _padding(model: ModelSpec, stored: StoredGroup, moe_tp: int, row: int) -> float:
    """How much more an MXFP4 expert's tensor takes in the engine than in the checkpoint."""
    group = stored.group
    if row <= 1 or stored.method != "mxfp4" or group.shard == "replicated":
        return 1.0
    width = model.hidden if group.shard == "column" else group.units / moe_tp
    longer = math.ceil(width / row) * row / width
    # Of 17 bytes for 32 weights, 16 are values.
    return (16 * longer + 1) / 17


@functools.lru_cache(maxsize=1024)
def rotary_elements(model: ModelSpec) -> int:
    """Elements of the rotary tables that a rank keeps: one (positions x rotated width) for each kind of rope."""
    ropes = {layer.attention.rope for layer in model.layers if layer.attention.rope is not None}
    return sum(rope.max_position * rope.dim for rope in ropes)
