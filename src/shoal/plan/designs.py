"""What a search finds: designs with their figures, what was rejected and why, and what cannot be had."""

from dataclasses import dataclass, field
from typing import Literal

from shoal.plan.question import Question, WeightOption
from shoal.plan.step_time import Estimate
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout

Limit = Literal["memory", "tpot", "ttft", "engine", "traffic"]
"""What keeps a replica from taking more: its KV memory, an objective, the engine's batch limit, or nothing but
that nobody asks for more."""
Reason = Literal[
    "invalid layout", "no link", "engine", "weights do not fit", "no room for KV", "context does not fit",
    "TTFT", "TPOT", "devices",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, at the demand of the question unless a name says otherwise."""

    per_hour: float
    per_million_output: Estimate
    """A million output tokens, all else included; the interval is that of the devices needed."""
    per_million_tokens: Estimate
    """A million tokens of input and output together."""
    at_capacity: float
    """A million output tokens if all capacity that is bought were used."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Upper bounds: every device at its rated power, hosts and cooling left out."""

    kilowatts: float
    watt_hours_per_million: float
    """Watt-hours a million output tokens."""


@dataclass(frozen=True, slots=True)
class Design:
    """One way to serve the traffic. Times in seconds, `tokens` are output tokens unless said otherwise."""

    accelerator: Accelerator
    engine: str
    engine_since: str
    """The version from which the memory constants used hold."""
    weights: WeightOption
    kv_dtype: str
    layout: Layout
    """Of a replica; of a decoding worker where prefill is split off."""
    replicas: int
    """With the spares."""
    spares: int
    prefill: Layout | None
    prefill_replicas: int
    load: float
    """Requests in flight of one replica at the peak, all replicas alive."""
    capacity: int
    """Requests in flight that one replica takes within the targets and its memory."""
    limit: Limit
    memory_batch: int
    """Requests that its KV memory holds."""
    ttft: Estimate
    """At the percentile asked for."""
    tpot: Estimate
    tokens_per_second: Estimate
    """Of all replicas at the peak load."""
    demand: float
    """Tokens a second that the question asks for at the peak, by which costs are worked out."""
    front: tuple[tuple[float, float], ...]
    """(tok/s/user, tok/s/device) as the load of a replica grows."""
    sure: bool
    """The upper ends of the intervals meet the targets too."""
    needed: tuple[int, int, int]
    """Devices if everything is at the quick end of its interval, as estimated, and at the slow end."""
    cost: Cost | None = None
    energy: Energy | None = None
    sequences: int = 1
    """Requests that the engine is told to run at once on one attention rank (`max_num_seqs`)."""
    prefill_sequences: int = 0
    """The same of a prefill worker."""
    prefill_accelerator: Accelerator | None = None
    """Where prefill runs, if not on `accelerator`."""

    @property
    def split(self) -> bool:
        return self.prefill is not None

    @property
    def parts(self) -> tuple[tuple[Accelerator, int], ...]:
        """(accelerator, devices): what decodes or does all first, then what prefills, if that is another."""
        here = self.layout.world * self.replicas
        first = self.prefill.world * self.prefill_replicas if self.prefill else 0
        if self.prefill_accelerator is None:
            return ((self.accelerator, here + first),)
        return (self.accelerator, here), (self.prefill_accelerator, first)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        return tuple(part for part, _ in self.parts)

    @property
    def hardware(self) -> str:
        """The accelerators by name: "h100_sxm", or "l40s + h100_sxm" where prefill runs on the first."""
        return " + ".join(part.name for part in reversed(self.accelerators))

    @property
    def mixed(self) -> bool:
        """Prefill runs on another accelerator than decode."""
        return self.prefill_accelerator is not None

    def beside(self, other: "Design") -> bool:
        """Whether it runs on the other's hardware, or on the accelerator that decodes there alone."""
        return self.hardware in (other.hardware, other.accelerator.name)

    @property
    def devices(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def per_user(self) -> float:
        """Tokens a second that one user sees."""
        return 1.0 / self.tpot.mean

    @property
    def per_device(self) -> float:
        return self.tokens_per_second.mean / self.devices

    @property
    def rung(self) -> int:
        """Rung of the escalation ladder, 1 to 6: one device, replicas, tensor, pipeline, experts, split."""
        if self.split:
            return 6
        if self.layout.ep > 1 or self.layout.dp > 1:
            return 5
        if self.layout.pp > 1:
            return 4
        if self.layout.tp > 1 or self.layout.cp > 1:
            return 3
        return 2 if self.replicas > 1 else 1

    @property
    def name(self) -> str:
        """`2 x (tp8) on h200_sxm, fp8 weights, fp8 cache`."""
        shape = f"{self.replicas} × {self.layout.label()}"
        if self.prefill is not None:
            there = "" if self.prefill_accelerator is None else f" on {self.prefill_accelerator.name}"
            shape = f"{self.prefill_replicas} × {self.prefill.label()} prefill{there} + {shape} decode"
        return f"{shape} on {self.accelerator.name}, {self.weights.name} weights, {self.kv_dtype} cache"


@dataclass(frozen=True, slots=True)
class Miss:
    """One layout that was turned down."""

    reason: Reason
    label: str
    detail: str
    short: float
    """How far it is from passing, smaller is nearer; only compared within one reason."""
    devices: int
    accelerator: str = ""
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Layouts that were turned down for one reason, and the one that came nearest."""

    reason: Reason
    count: int
    example: str
    """The nearest miss: layout, accelerator, weights."""
    detail: str
    """What it would have had to be, in words."""


@dataclass(frozen=True, slots=True)
class BestPossible:
    """The best that can be had where nothing meets the question."""

    what: Literal["ttft", "tpot", "both", "memory", "devices"]
    """What is impossible."""
    message: str
    ttft: Estimate | None = None
    """The quickest first token of any design, alone on it."""
    ttft_design: str = ""
    tpot: Estimate | None = None
    tpot_design: str = ""
    least_devices: int | None = None
    """The fewest devices that hold the model and one request."""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One point of tok/s/user against tok/s/device."""

    per_user: float
    per_device: float
    design: str
    accelerator: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """A design and its place: designs of one group are too close to call."""

    group: int
    design: Design


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to a question."""

    question: Question
    ranked: tuple[Ranked, ...]
    """Best first; those without a price after all that have one. Empty if nothing serves."""
    rejections: tuple[Rejection, ...]
    front: tuple[FrontPoint, ...]
    """Designs than which none is better both for a user and for a device."""
    considered: int
    """Layouts looked at, on all accelerators, in all ways of storing weights and cache."""
    impossible: BestPossible | None = None
    missed: tuple[Miss, ...] = field(default=(), repr=False)
    """Every layout that was turned down; `rejections` sums them up."""

    @property
    def best(self) -> Design | None:
        return self.ranked[0].design if self.ranked else None

    @property
    def designs(self) -> tuple[Design, ...]:
        return tuple(entry.design for entry in self.ranked)
