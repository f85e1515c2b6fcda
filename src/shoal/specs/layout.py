"""How a replica is spread over devices: `Layout`, its rules, and the nearest layout that keeps them.

    rank = ((pp · DP + dp) · CP + cp) · TP + tp        tp fastest: the axis that sends most has neighbours

    dp=1 pp=2 tp=2     stage 0: ranks 0 1      stage 1: ranks 2 3      tp groups {0,1} {2,3}, pp groups {0,2} {1,3}

`ep` adds no ranks: it regroups the `stage_ranks` = dp·cp·tp ranks of a pipeline stage for the expert layers. Rank j
of a stage holds expert group j // cut, of which it holds slice j % cut, where cut = `stage_ranks` / ep. Tokens are
sent over `ep` (same slice), slices are summed over `etp` (same expert group).
"""

import functools
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from shoal.specs.errors import SpecError
from shoal.specs.model import FfnSpec, ModelSpec, QuantizationSpec

Axis = Literal["tp", "pp", "ep", "dp", "cp"]
AXES: tuple[Axis, ...] = ("tp", "pp", "ep", "dp", "cp")
GroupAxis = Literal["tp", "pp", "cp", "dp", "ep", "etp", "world"]
GROUP_AXES: tuple[GroupAxis, ...] = ("tp", "pp", "cp", "dp", "ep", "etp", "world")
MAX_WORLD = 1 << 16


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a rank is on the axes."""

    dp: int
    pp: int
    cp: int
    tp: int


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """A rule that a layout breaks."""

    rule: str
    """Short name: `heads`, `stages`, `no-experts`, `expert-group`, `expert-count`, `expert-width`, `width`."""
    message: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of the parallel axes of one replica."""

    tp: int = 1
    """Tensor parallel: heads and dense FFN columns."""
    pp: int = 1
    """Pipeline stages of contiguous layers."""
    ep: int = 1
    """Expert groups; divides tp·cp·dp."""
    dp: int = 1
    """Data-parallel attention inside the replica: sequences, not weights, are distributed."""
    cp: int = 1
    """Context parallel: a sequence's KV is striped over these ranks."""

    def __post_init__(self) -> None:
        for axis in AXES:
            degree = getattr(self, axis)
            if isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= MAX_WORLD:
                raise SpecError(f"layout.{axis}", degree, f"a whole number from 1 to {MAX_WORLD}")

    def with_expert_lanes(self) -> "Layout":
        """Return this layout with as many lanes as expert groups where `ep` is the only axis of a stage."""
        return replace(self, dp=self.ep) if self.stage_ranks == 1 else self

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def world(self) -> int:
        """Devices of one replica."""
        return self.stage_ranks * self.pp

    @property
    def moe_tp(self) -> int:
        """Ranks that each expert is cut over (only whole when `ep` divides `stage_ranks`)."""
        return max(1, self.stage_ranks // self.ep)

    @property
    def expert_cut(self) -> int:
        """Ranks that Shoal's engine cuts each expert over; without `ep`, over `tp`, like dense layers."""
        return self.tp if self.ep == 1 else self.moe_tp

    @property
    def lock_step(self) -> bool:
        """Whether lanes meet in the collectives of expert layers, so that an idle one has to join every step."""
        return self.dp > 1 and self.ep > 1

    def coordinates(self, rank: int) -> Coordinates:
        """Where `rank` is. Raises ValueError for one that the layout does not have."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} of {self.world}")
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Coordinates(dp=dp, pp=pp, cp=cp, tp=tp)

    def rank(self, at: Coordinates) -> int:
        """The rank at `at`."""
        return ((at.pp * self.dp + at.dp) * self.cp + at.cp) * self.tp + at.tp

    def members(self, axis: GroupAxis, rank: int) -> tuple[int, ...]:
        """The ranks of `rank`'s group of an axis, by index within the group."""
        at = self.coordinates(rank)
        match axis:
            case "world":
                return tuple(range(self.world))
            case "ep" | "etp":
                return self._expert_members(axis, rank)
            case "tp" | "cp" | "dp" | "pp":
                return tuple(self.rank(replace(at, **{axis: i})) for i in range(getattr(self, axis)))

    def _expert_members(self, axis: Literal["ep", "etp"], rank: int) -> tuple[int, ...]:
        if self.ep == 1:
            return self.members("tp", rank) if axis == "etp" else (rank,)
        cut = self.expert_cut
        first = rank - rank % self.stage_ranks
        group, part = divmod(rank - first, cut)
        if axis == "ep":
            return tuple(first + other * cut + part for other in range(self.ep))
        return tuple(first + group * cut + other for other in range(cut))

    def groups(self, axis: GroupAxis) -> tuple[tuple[int, ...], ...]:
        """All groups of an axis, each once, in order of their first rank."""
        return tuple(dict.fromkeys(self.members(axis, rank) for rank in range(self.world)))

    def samples(self, rank: int) -> bool:
        """Whether `rank` samples for its lane: last stage, first of tp and cp."""
        at = self.coordinates(rank)
        return at.pp == self.pp - 1 and at.cp == 0 and at.tp == 0

    def describe(self, rank: int) -> str:
        """`rank` for messages: `rank 1 (tp 1 of 2)`."""
        at = self.coordinates(rank)
        places = [
            f"{axis} {getattr(at, axis)} of {getattr(self, axis)}"
            for axis in ("dp", "pp", "cp", "tp")
            if getattr(self, axis) > 1
        ]
        return f"rank {rank}" + (f" ({', '.join(places)})" if places else "")

    def span(self, axis: Axis) -> int:
        """Neighbouring devices from the first to the last rank of one group of this axis."""
        strides = {"tp": self.tp, "cp": self.tp * self.cp, "dp": self.stage_ranks, "ep": self.stage_ranks}
        return strides.get(axis, self.world)

    def label(self) -> str:
        """The axes above one, e.g. `tp8 pp2`; a single device is `tp1`."""
        parts = [f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " ".join(parts) or "tp1"

    def problems(
        self, model: ModelSpec, even_heads: bool = False, quantization: QuantizationSpec | None = None
    ) -> list[LayoutProblem]:
        """Every rule that this layout breaks for `model`; empty when it is valid.

        `even_heads`: the engine needs tp to divide the query heads, and the KV heads to divide or be divided by it
        (vLLM, SGLang, TensorRT-LLM). Shoal's engine assigns whole KV groups unevenly and does not.
        `quantization`: how the weights are to be stored; None: as in the checkpoint.
        """
        return [
            *self._stage_problems(model),
            *self._head_problems(model, even_heads),
            *self._expert_problems(model, quantization or model.quantization),
        ]

    def _stage_problems(self, model: ModelSpec) -> list[LayoutProblem]:
        count = len(model.layers)
        if self.pp <= count:
            return []
        return [LayoutProblem("stages", f"pp={self.pp} leaves a stage without a layer: {model.name} has {count}")]

    def _head_problems(self, model: ModelSpec, even_heads: bool) -> list[LayoutProblem]:
        found: list[LayoutProblem] = []
        for heads, kv_heads in _shapes(model).heads:
            uneven = heads % self.tp or (kv_heads and kv_heads % self.tp and self.tp % kv_heads)
            if self.tp > heads:
                message = f"tp={self.tp} leaves a rank without a head: attention has {heads} query heads"
                found.append(LayoutProblem("heads", message))
            elif even_heads and uneven:
                message = f"tp={self.tp} does not divide {heads} query and {kv_heads} KV heads evenly"
                found.append(LayoutProblem("heads", message))
        for width in _shapes(model).dense_widths:
            if even_heads and width % self.tp:
                message = f"tp={self.tp} does not divide the dense FFN's {width} columns"
                found.append(LayoutProblem("width", message))
        return found

    def _expert_problems(self, model: ModelSpec, quantization: QuantizationSpec | None) -> list[LayoutProblem]:
        moe = _shapes(model).moe
        if not moe:
            if self.ep == 1:
                return []
            return [LayoutProblem("no-experts", f"ep={self.ep}: {model.name} has no experts to spread")]
        if self.stage_ranks % self.ep:
            message = f"ep={self.ep} does not divide the {self.stage_ranks} ranks of a stage (tp·cp·dp)"
            return [LayoutProblem("expert-group", message)]
        return [problem for ffn in moe for problem in self._expert_shape(ffn, quantization)]

    def _expert_shape(self, ffn: FfnSpec, quantization: QuantizationSpec | None) -> list[LayoutProblem]:
        experts = ffn.router.experts if ffn.router is not None else 0
        if self.ep > experts:
            return [LayoutProblem("expert-count", f"ep={self.ep} leaves a rank without one of {experts} experts")]
        unit = 1
        if quantization is not None and quantization.method == "fp8_block" and quantization.group:
            unit = quantization.group[0]
        if ffn.intermediate % (self.moe_tp * unit):
            blocks = f" in whole blocks of {unit}" if unit > 1 else ""
            message = f"an expert's {ffn.intermediate} columns cannot be cut {self.moe_tp} ways{blocks}"
            return [LayoutProblem("expert-width", message)]
        return []

    def nearest(
        self,
        model: ModelSpec,
        even_heads: bool = False,
        quantization: QuantizationSpec | None = None,
        limit: int = 3,
    ) -> "list[Layout]":
        """Up to `limit` valid layouts of the same number of devices, or failing that of the most that are fewer,
        nearest to this one first (fewest axes changed, then the smallest factor of change)."""
        for world in range(self.world, 0, -1):
            valid = [c for c in layouts(world, model) if not c.problems(model, even_heads, quantization)]
            if valid:
                return sorted(valid, key=self._distance)[:limit]
        return []

    def _distance(self, other: "Layout") -> tuple[int, float, int]:
        changed = [(getattr(self, a), getattr(other, a)) for a in AXES if getattr(self, a) != getattr(other, a)]
        factor = 1.0
        for mine, theirs in changed:
            factor *= max(mine, theirs) / min(mine, theirs)
        return len(changed), factor, -other.tp

    def validate(self, model: ModelSpec) -> "Layout":
        """This layout, if it is valid for `model`; else `SpecError` with the rules broken and the nearest valid."""
        problems = self.problems(model)
        if not problems:
            return self
        nearest = " or ".join(layout.label() for layout in self.nearest(model))
        advice = f"a layout that keeps this rule, nearest {nearest}" if nearest else "another model or layout"
        raise SpecError("layout", self.label(), f"{advice} ({'; '.join(p.message for p in problems)})")


@dataclass(frozen=True, slots=True)
class _Shapes:
    """What rules look at, each once however many layers have it."""

    heads: tuple[tuple[int, int], ...]
    """(query heads, KV heads)."""
    dense_widths: tuple[int, ...]
    moe: tuple[FfnSpec, ...]


@functools.lru_cache(maxsize=1024)
def _shapes(model: ModelSpec) -> _Shapes:
    layers = dict.fromkeys(model.layers)
    return _Shapes(
        heads=tuple(sorted({(layer.attention.heads, layer.attention.kv_heads) for layer in layers})),
        dense_widths=tuple(sorted({layer.ffn.intermediate for layer in layers if layer.ffn.kind == "dense"})),
        moe=tuple(dict.fromkeys(layer.ffn for layer in layers if layer.ffn.kind == "moe")),
    )


def _divisors(value: int) -> list[int]:
    return [d for d in range(1, value + 1) if value % d == 0]


def layouts(world: int, model: ModelSpec) -> list[Layout]:
    """Every layout of `world` devices whose axes could suit `model`, not yet checked against its rules."""
    moe = _shapes(model).moe
    found: list[Layout] = []
    for pp, tp in product(_divisors(world), repeat=2):
        if world % (pp * tp) or pp > len(model.layers):
            continue
        rest = world // (pp * tp)
        for cp in _divisors(rest):
            base = Layout(tp=tp, pp=pp, dp=rest // cp, cp=cp)
            degrees = _divisors(base.stage_ranks) if moe else [1]
            found.extend(replace(base, ep=ep) for ep in degrees)
    return found
