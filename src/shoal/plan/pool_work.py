"""What a model costs each device of a pool: `ModelWork` × accelerator × layout × precision, worked out once."""

import math
from dataclasses import dataclass

from shoal.plan.engine_constants import generation_level
from shoal.plan.numeric import Real
from shoal.plan.work import ModelWork
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout

PRECISIONS = ("bf16", "fp8", "int8", "fp4", "int4")
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0 + 4 / 16384, "int8": 1.0, "fp4": 0.5625, "int4": 0.53125}
_RUNTIME_BYTES = 3e9
_UTILIZATION = 0.9


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes a weight and the rate that multiplies it, by part of the model."""

    label: str
    attention: str
    dense: str
    experts: str

    @property
    def bytes(self) -> tuple[float, float, float]:
        return _BYTES[self.attention], _BYTES[self.dense], _BYTES[self.experts]


def precision_of(label: str, model: ModelWork) -> Precision:
    """What a one-word precision means for this model, after the checkpoints in circulation.

    fp4 of a model with experts keeps attention in fp8; MXFP4 (gpt-oss) and int4 keep everything but the experts
    in bf16. A dense model is quantized throughout.
    """
    if label not in _BYTES:
        raise SpecError("precision", label, f"one of {', '.join(PRECISIONS)}")
    if model.top_k and (model.native == "mxfp4" or label == "int4"):
        return Precision(label, "bf16", "bf16", "fp4" if model.native == "mxfp4" else label)
    if model.top_k and label == "fp4":
        return Precision(label, "fp8", label, label)
    return Precision(label, label, label, label)


def compute_rate(accelerator: Accelerator, precision: str) -> float:
    """FLOP/s of products whose weights have this precision: int4 is widened to bf16 first."""
    return accelerator.rate("bf16" if precision == "int4" else precision)


_WATTS_PER_TFLOPS = 1.28
"""Of an RTX PRO 6000 and an A100, which reach the share of their published rate that the constants say."""
_SUSTAINED = (0.7, 1.5)


def sustained(accelerator: Accelerator) -> float:
    """How many times that share a part reaches, on generations that were never measured; 1 on those that were.

    A published rate is one at boost clocks; which clocks are held is a question of power. Clocks go with the root
    of the watts for each operation: kernels of an RTX 4090 (2.7 W per published bf16 TFLOP/s) reach all of its
    rate, of an RTX PRO 6000 (1.28 W) 0.89 of it (LLMServingSim 2, `profiler/perf`, 2026).
    """
    watts, known = accelerator.watts, dict(accelerator.rates).get("bf16")
    if (
        accelerator.vendor.casefold() != "nvidia"
        or generation_level(accelerator.architecture) != "other"
        or not watts
    ):
        return 1.0
    rate = known or accelerator.rate("fp16")
    low, high = _SUSTAINED
    return min(high, max(low, math.sqrt(watts / (rate / 1e12) / _WATTS_PER_TFLOPS)))


@dataclass(frozen=True, slots=True)
class PoolWork:
    """Costs on one device of one worker. All fields are floats, or arrays with one entry a case."""

    hidden: Real
    layers: Real
    moe_layers: Real
    experts: Real
    top_k: Real
    touched_log: Real
    """ln(1 − k/N): what one more token does to the share of experts that no token wants."""
    dense_bytes: Real
    """Attention, dense FFN and output weights that every step reads."""
    expert_bytes: Real
    attention_ops: Real
    """FLOPs a token of an attention rank: attention and dense FFN projections."""
    expert_ops: Real
    """FLOPs a token of the worker."""
    kv_elements: Real
    window: Real
    window_elements: Real
    state_bytes: Real
    decode_ops: Real
    prefill_ops: Real
    attended: Real
    dense_rate: Real
    expert_rate: Real
    attention_rate: Real
    bandwidth: Real
    memory: Real
    weight_bytes: Real
    """Weights resident on the device."""
    link: Real
    far_link: Real
    tp: Real
    span: Real
    """Ranks that take part in the FFN's collective."""
    tp_doublings: Real
    """log₂ of the ranks beyond two, 0 for one or two."""
    span_doublings: Real
    tp_away: Real
    """(n−1)/n: the part of a message that leaves the rank."""
    span_away: Real
    fan: Real
    """Ranks that a token's experts are at, at most."""
    exchanges: Real
    """1 where experts are reached by dispatch and combine, 0 where by all-reduce."""
    far: Real
    """1 where that collective leaves the scale-up domain, else 0."""
    attention_dp: Real
    ep: Real
    pp: Real
    devices: Real


def pool_work(
    model: ModelWork, accelerator: Accelerator, layout: Layout, precision: Precision, kv_split: int | None = None
) -> PoolWork:
    """Per-device costs of a worker with `layout`. `kv_split` overrides over how many ranks KV heads are dealt."""
    stage = layout.stage_ranks
    tp, pp = layout.tp, layout.pp
    attention, dense, experts = precision.bytes
    split = 1 if model.kv_replicated else (kv_split or min(tp, model.kv_heads))
    head = model.head_weights * 2.0
    embed = model.embedding_weights * 2.0
    attention_bytes = model.attention_weights * attention / tp
    dense_bytes = model.dense_weights * dense / stage
    routed = model.expert_weights * model.experts * experts / stage if model.top_k else 0.0
    domain = accelerator.domain
    nic = accelerator.nic.bandwidth if accelerator.nic is not None else 1.25e9
    span = stage if model.top_k else tp
    held = sustained(accelerator)
    share = min(model.top_k / model.experts, 0.999999) if model.top_k else 0.5
    return PoolWork(
        hidden=float(model.hidden), layers=float(model.layers), moe_layers=float(model.moe_layers),
        experts=float(model.experts), top_k=float(model.top_k), touched_log=math.log1p(-share),
        dense_bytes=attention_bytes + dense_bytes + head / stage, expert_bytes=routed,
        attention_ops=2.0 * (model.attention_weights + model.dense_weights) / tp / layout.cp,
        expert_ops=2.0 * model.expert_weights * model.top_k / stage,
        kv_elements=model.kv_elements / split / layout.cp, window=max(model.window, 1.0),
        window_elements=model.window_elements / split, state_bytes=model.state_elements * 4.0 / tp,
        decode_ops=model.decode_ops / tp / layout.cp, prefill_ops=model.prefill_ops / tp / layout.cp,
        attended=min(model.attended, 1e12), dense_rate=held * compute_rate(accelerator, precision.dense),
        expert_rate=held * compute_rate(accelerator, precision.experts),
        attention_rate=held * accelerator.rate("bf16"),
        bandwidth=accelerator.bandwidth, memory=accelerator.device_bytes,
        weight_bytes=(attention_bytes + dense_bytes + routed + (head + embed) / stage) / pp,
        link=accelerator.scale_up.bandwidth, far_link=nic, tp=float(tp), span=float(span),
        tp_doublings=_doublings(tp), span_doublings=_doublings(span), tp_away=1.0 - 1.0 / tp,
        span_away=1.0 - 1.0 / span, fan=float(min(model.top_k, span)),
        exchanges=1.0 if layout.dp > 1 and model.top_k else 0.0,
        far=1.0 if span > domain else 0.0, attention_dp=float(layout.dp), ep=float(layout.ep), pp=float(pp),
        devices=float(layout.world),
    )  # fmt: skip


def _doublings(ranks: int) -> float:
    return max(math.log2(ranks) - 1.0, 0.0)


def cache_room(work: PoolWork, utilization: float = _UTILIZATION) -> Real:
    """Bytes of a device left for KV: a share of its memory less weights and runtime, never below 3 % of memory.

    A layout that cannot hold its weights is `plan.memory`'s business to refuse; here it only gets slow.
    """
    free = work.memory * utilization - work.weight_bytes - _RUNTIME_BYTES
    floor = work.memory * 0.03
    return (free + floor + abs(free - floor)) / 2
