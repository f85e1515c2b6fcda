"""The calibrated constants of the time model: their names, priors, and how groups of rows share them.

A constant of one engine on one machine is `global × engine × generation × precision × mode`, each factor fitted
with shrinkage towards one, so that a machine or engine that was never measured gets the global value and not an
accident of its neighbour.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from shoal.plan.numeric import SCALAR, Ops, Real

Mode = Literal["agg", "disagg"]
GROUPS = ("backend", "generation", "precision", "mode")


@dataclass(frozen=True, slots=True)
class Constants:
    """Times are seconds, shares are of the published peak; each may be a number or an array of rows."""

    weight_bandwidth: Real = 0.75
    """Share of memory bandwidth at which dense weights are read."""
    expert_bandwidth: Real = 0.7
    """The same for the experts that a batch touches."""
    decode_rate: Real = 0.35
    """Share of peak FLOP/s of a decode step's matrix products, where they bind."""
    kv_bandwidth: Real = 0.6
    """Share of memory bandwidth at which the cache is read."""
    decode_attention_rate: Real = 0.4
    """Share of peak bf16 FLOP/s of decode attention (binds for MLA)."""
    layer: Real = 14e-6
    """Fixed time of one layer: kernel launches, norms, small kernels."""
    moe_layer: Real = 25e-6
    """What a layer with experts adds: routing, permutation, grouped products."""
    step: Real = 4e-4
    """Fixed time of a step: scheduling, sampling, one host round trip."""
    token: Real = 8e-6
    """Host time of each sequence in a step."""
    data_parallel_layer: Real = 10e-6
    """What attention data parallelism adds to a layer: ranks wait for each other."""
    reduce_latency: Real = 10e-6
    """An all-reduce of two ranks with an almost empty message."""
    reduce_growth: Real = 0.4
    """By how much that grows with each doubling of the ranks."""
    link_share: Real = 0.4
    """Share of the link's bandwidth that collectives of a decode step reach."""
    far_latency: Real = 40e-6
    """What each collective adds when it leaves the scale-up domain."""
    expert_tile: Real = 48.0
    """Rows that each touched expert's product is padded by, on average."""
    imbalance: Real = 0.2
    """Load of the busiest expert rank above the mean, for one token a rank; falls with the root of the tokens."""
    prefill_rate: Real = 0.6
    """Share of peak FLOP/s of dense products in prefill."""
    prefill_expert_rate: Real = 0.3
    prefill_attention_rate: Real = 0.6
    """Share of peak bf16 FLOP/s of causal attention in prefill."""
    prefill_link_share: Real = 0.6
    prefill_layer: Real = 6e-5
    """Fixed time of one layer in a prefill pass."""
    prefill_token: Real = 1e-6
    """Host time of each prompt token."""
    cache_bytes: Real = 1.5
    """Bytes an element of the KV cache takes, with what fragmentation and reserves waste."""
    interference: Real = 1.0
    """Share of other requests' prefill time that a decoding stream waits for."""
    request: Real = 0.01
    """Fixed time of a request before its prefill: parsing, tokenizing, queueing."""
    own_prefill: Real = 1.2
    """How many times its own prefill a request waits."""
    queue: Real = 0.25
    """Prefills of others before its own: `queue · (others)^queue_power`."""
    queue_power: Real = 0.85
    stream: Real = 3.0
    """Decode steps until the first token reaches the client."""
    wait: Real = 1.0
    """Closed-loop wait for KV memory against its ideal, as a factor."""
    split_request: Real = 0.08
    """Fixed time that split prefill adds: the hand-over between pools."""
    split_queue: Real = 0.3
    split_queue_power: Real = 0.85
    split_prefill: Real = 0.7
    """Time of a prompt in a prefill-only worker against the same prompt alone."""
    saturation: Real = 0.5
    """Wait behind a saturated prefill pool against its ideal, as a factor."""
    unknown_saturation: Real = 0.2
    """The same where the numbers of workers are not known."""


SHARES = frozenset({
    "weight_bandwidth", "expert_bandwidth", "decode_rate", "kv_bandwidth", "decode_attention_rate", "link_share",
    "prefill_rate", "prefill_expert_rate", "prefill_attention_rate", "prefill_link_share",
})  # fmt: skip
"""Shares of a published peak, which stay below one: fitted as logits, the other constants as logarithms."""


def to_link(name: str, value: float) -> float:
    """A constant on the scale on which it is fitted and its offsets add up."""
    return math.log(value / (1.0 - value)) if name in SHARES else math.log(value)


def from_link(name: str, value: Real, ops: Ops = SCALAR) -> Real:
    """The inverse of `to_link`, for a float or an array."""
    return 1.0 / (1.0 + ops.exp(-value)) if name in SHARES else ops.exp(value)


NAMES = tuple(f.name for f in fields(Constants))
PRIOR = Constants()

STRENGTH: Mapping[str, float] = {
    "wait": 30.0, "saturation": 8.0, "unknown_saturation": 8.0, "cache_bytes": 3.0, "prefill_attention_rate": 3.0,
    "prefill_rate": 2.0, "imbalance": 2.0, "expert_tile": 2.0, "far_latency": 2.0,
}  # fmt: skip
"""How firmly the fit holds a constant at its prior (1 unless given): those that few rows inform."""

VARIES: Mapping[str, tuple[str, ...]] = {
    "backend": (
        "layer", "moe_layer", "step", "token", "interference", "request", "queue", "stream", "prefill_layer",
        "prefill_rate", "prefill_expert_rate", "cache_bytes", "expert_bandwidth", "reduce_latency", "split_request",
        "split_queue", "own_prefill",
    ),
    "generation": (
        "cache_bytes", "weight_bandwidth", "expert_bandwidth", "prefill_rate", "prefill_expert_rate", "decode_rate",
        "reduce_latency", "layer", "kv_bandwidth", "prefill_layer",
    ),
    "precision": (
        "cache_bytes", "kv_bandwidth", "weight_bandwidth", "expert_bandwidth", "prefill_rate",
        "prefill_expert_rate", "decode_rate", "moe_layer", "layer",
    ),
    "mode": ("layer", "step", "moe_layer", "token", "expert_bandwidth", "prefill_expert_rate", "stream"),
}  # fmt: skip
"""Which constants each grouping may shift. Nothing is fitted per model or per machine."""

Offsets = Mapping[str, Mapping[str, Mapping[str, float]]]
"""group → level → constant → offset on its link scale."""


def generation_level(architecture: str) -> str:
    """The kernels' generation that a fit distinguishes; others stand between them, at the global value."""
    return architecture if architecture in ("hopper", "blackwell") else "other"


def resolve(
    base: Mapping[str, float], offsets: Offsets, backend: str, architecture: str, precision: str, mode: Mode,
    own: Mapping[str, float] | None = None,
) -> Constants:  # fmt: skip
    """The constants of one engine, kernel generation, precision and mode; unknown levels add nothing.

    `own` holds shifts that a user measured on the machine itself.
    """
    levels = {
        "backend": backend,
        "generation": generation_level(architecture),
        "precision": precision,
        "mode": mode,
    }
    links = {name: base.get(name, to_link(name, getattr(PRIOR, name))) for name in NAMES}
    for group, level in levels.items():
        for name, offset in offsets.get(group, {}).get(level, {}).items():
            links[name] += offset
    for name, offset in (own or {}).items():
        links[name] += offset
    return Constants(**{name: from_link(name, value) for name, value in links.items()})
