"""How wide a prediction's interval is: by what of it was measured, in which regime, on which class of hardware.

An interval is `[mean·exp(low·s), mean·exp(high·s)]`. `s` is the size of residuals that trees expect for such a
case where it was measured, and 1 elsewhere: sizes that trees learn from some models or machines say nothing of the
next. `low` and `high` are quantiles of residual ÷ `s`, taken from residuals of fits that had not seen what the
case's level of knowledge says is unseen. What is known of a class carries over: a model that was measured on
other machines gets the residuals of machines left out, not those of a guess.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.plan.deployment import Deployment
from shoal.plan.engine_constants import generation_level
from shoal.plan.numeric import Real
from shoal.plan.serving import Load, Outcome

LEVELS = ("measured", "machine", "model", "engine", "generation")
"""What is new about a case, least first: nothing but its load and lengths; the machine, for this model; the
model; the engine; the machine's generation."""
REGIMES = ("idle", "loaded", "memory-bound", "split", "split, workers assumed")
CLASSES = ("hopper", "blackwell")
"""Kernel generations that have quantiles of their own, shrunk towards those of all."""
TRUST: Mapping[str, tuple[float, float]] = MappingProxyType({
    "measured": (1.0, 1.0), "machine": (0.5, 0.5), "model": (0.0, 0.5), "engine": (0.0, 0.5),
    "generation": (0.0, 0.5),
})  # fmt: skip
"""How much of the trees' correction of TPOT and TTFT applies at a level of knowledge. Trees learn what deployments
that were measured have in common; of models left out, TPOT by the formulas alone is nearer (14 % against 18 % off,
the median of serving-silicon.csv)."""
FURTHER = 1.25
"""Factor on the logarithmic width for each further thing that nobody measured, next to the one that sets the
level. A
judgement: no row lacks two."""
IDLE_REQUESTS = 16.0
"""Requests in flight for an attention rank, up to which it counts as idle."""

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


class Interval(msgspec.Struct, frozen=True):
    """Quantiles of residual ÷ scale, in the logarithm: [mean·exp(low·s), mean·exp(high·s)] holds 90 %."""

    low: float
    high: float


class IntervalCell(msgspec.Struct, frozen=True):
    """The quantiles of one level, regime and class of hardware (empty: every other class)."""

    level: str
    regime: str
    hardware: str
    tpot: Interval
    ttft: Interval


class OwnFit(msgspec.Struct, frozen=True):
    """One engine on one machine, as its user measured it with one model in one precision."""

    engine: str
    machine: str
    precision: str
    model: str
    """Key of the model that was measured; others, and other precisions, share the constants, not the interval."""
    observations: int
    offsets: dict[str, float]
    """Shifts of constants on their link scale."""
    factors: tuple[float, float]
    """On TPOT and TTFT, after all else."""
    trees: bool
    """The correction trees apply: the machine is of a generation that they were fitted to."""
    tpot: Interval
    ttft: Interval
    """Logarithms themselves: their scale is 1."""


def _ends(of: IntervalCell | OwnFit) -> tuple[float, float, float, float]:
    return of.tpot.low, of.tpot.high, of.ttft.low, of.ttft.high


@dataclass(frozen=True, slots=True)
class Familiarity:
    """What of a case was measured; floats, or arrays with one entry per case."""

    level: Real
    """Place in `LEVELS`; from their number on, the place of a user's own fit."""
    hardware: Real
    """Place in `CLASSES`, or their number for any other."""
    further: Real
    """Factor on the width for what else is new."""
    trees: Real = 1.0
    """0 where the correction trees say nothing of the machine."""
    tpot_factor: Real = 1.0
    ttft_factor: Real = 1.0
    tpot_trust: Real = 1.0
    """Share of the trees' correction that applies (`TRUST`)."""
    ttft_trust: Real = 1.0

    @property
    def scaled(self) -> Real:
        """1 where the scale of residuals is that of a measured deployment, 0 where it is 1."""
        return np.asarray(np.asarray(self.level) < 0.5, dtype=np.float64)


def model_key(d: Deployment) -> str:
    """A model by its shape: names that share one (R1 and V3, a checkpoint and its quantizations) are one model."""
    return f"{d.model.hidden}x{d.model.layers}x{d.model.experts}"


def own_fit(d: Deployment, own: Sequence[OwnFit]) -> int | None:
    """The place of a user's own fit of this engine and machine: of this precision, or else the last of another."""
    here = [n for n, fit in enumerate(own) if (fit.engine, fit.machine) == (d.backend, d.accelerator.name)]
    exact = [n for n in here if own[n].precision == d.precision]
    found = exact or here
    return found[-1] if found else None


def familiarity(
    d: Deployment, seen: Iterable[str], engines: Iterable[str], own: Sequence[OwnFit] = ()
) -> Familiarity:
    """What of a deployment was measured. `seen` holds "model key|machine", `engines` the backends of the fit."""
    pairs = frozenset(seen)
    models = {pair.partition("|")[0] for pair in pairs}
    new: list[str] = []
    if generation_level(d.accelerator.architecture) == "other":
        new.append("generation")
    if d.backend not in frozenset(engines):
        new.append("engine")
    if d.model.guessed or model_key(d) not in models:
        new.append("model")
    elif "generation" not in new and f"{model_key(d)}|{d.accelerator.name}" not in pairs:
        new.append("machine")
    level = max((LEVELS.index(name) for name in new), default=0)
    extra = max(len(new) - 1, 0) + d.model.guessed
    hardware = CLASSES.index(d.accelerator.architecture) if d.accelerator.architecture in CLASSES else len(CLASSES)
    place = own_fit(d, own)
    # A user's own factors were found on top of the same share of the correction.
    trust = TRUST[LEVELS[level]]
    if place is None:
        return Familiarity(float(level), float(hardware), FURTHER**extra, 1.0, 1.0, 1.0, *trust)
    fit, trees = own[place], float(own[place].trees)
    if (fit.model, fit.precision) == (model_key(d), d.precision):
        return Familiarity(float(len(LEVELS) + place), float(hardware), 1.0, trees, *fit.factors, *trust)
    return Familiarity(float(LEVELS.index("model")), float(hardware), 1.0, trees, *fit.factors, *trust)


def stack_familiarity(items: Sequence[Familiarity]) -> Familiarity:
    """Many cases' knowledge as arrays."""
    names = Familiarity.__dataclass_fields__
    return Familiarity(**{name: np.array([getattr(item, name) for item in items], dtype=float) for name in names})


def regimes_of(load: Load, out: Outcome) -> Index:
    """The place in `REGIMES` of each case: `memory-bound` is more than 90 % of what the KV memory admits."""
    offered, admitted = np.asarray(out.offered), np.asarray(out.admitted)
    whole = np.where(offered > 0.9 * admitted, 2, np.where(offered > IDLE_REQUESTS, 1, 0))
    parted = np.where(np.asarray(load.known_workers) > 0.5, 3, 4)
    return np.where(np.asarray(load.split) > 0.5, parted, whole).astype(np.intp)


class IntervalTable:
    """The cells of an artifact, laid out for look-up by arrays."""

    def __init__(self, cells: Sequence[IntervalCell], own: Sequence[OwnFit] = ()) -> None:
        shape = (len(LEVELS) + len(own), len(REGIMES), len(CLASSES) + 1)
        self._quantiles = np.zeros((4, *shape))
        for cell in sorted(cells, key=lambda c: c.hardware != ""):
            level, regime = LEVELS.index(cell.level), REGIMES.index(cell.regime)
            at = slice(None) if cell.hardware == "" else CLASSES.index(cell.hardware)
            for row, value in enumerate(_ends(cell)):
                self._quantiles[row, level, regime, at] = value
        for place, fit in enumerate(own):
            for row, value in enumerate(_ends(fit)):
                self._quantiles[row, len(LEVELS) + place] = value

    def quantiles(self, known: Familiarity, regime: Index) -> Array:
        """[TPOT low, TPOT high, TTFT low, TTFT high] of each case, widened for what else is new."""
        level, hardware = np.asarray(known.level, dtype=np.intp), np.asarray(known.hardware, dtype=np.intp)
        found: Array = self._quantiles[:, level, regime, hardware] * known.further
        return found

    def spread(self, known: Familiarity, scale: float) -> float:
        """Half the logarithmic width of a loaded replica's TPOT, as a factor."""
        low, high, _, _ = self.quantiles(known, np.asarray(REGIMES.index("loaded"))).tolist()
        return math.exp(0.5 * (high - low) * scale ** float(np.asarray(known.scaled)))
