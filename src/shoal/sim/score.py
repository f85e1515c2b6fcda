"""How well a simulation reproduces a measured run: signed errors of its figures, and whether intervals hold."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.policy.batching import SchedulerConfig
from shoal.sim.fit import Answered, replay
from shoal.sim.measured import MeasuredLog
from shoal.sim.timing import UncertainSeconds

Floats = npt.NDArray[np.float64]
GRID = (*(q / 100 for q in range(5, 100, 5)), 0.99)
"""Quantiles whose intervals are looked at."""
_TAIL = 1.645
"""Standard deviations on each side of a normal distribution that hold 90 %."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Simulated over measured, less one; and the share of measured quantiles inside the simulated 90 % interval."""

    mean_error: float
    p50_error: float
    p90_error: float
    p99_error: float
    coverage90: float


@dataclass(frozen=True, slots=True)
class Score:
    """One replayed log."""

    name: str
    requests: int
    unanswered: int
    """Requests that the engine answered, and the simulated one refused."""
    spread: float
    """Upper end of a step's 90 % interval over its mean."""
    ttft: Errors
    tpot: Errors
    e2e: Errors


def score(log: MeasuredLog, scheduler: SchedulerConfig, step: UncertainSeconds, front: float) -> Score:
    """Replay a log and compare; `front`: seconds between a request's arrival and its reaching the scheduler."""
    load, factors = log.load(), (1.0, 1 / step.spread, step.spread)
    middle, quick, slow = (replay(load, scheduler, step.scaled(factor), front) for factor in factors)

    def errors(kind: str, measured: Floats) -> Errors:
        found: Floats = getattr(middle, kind)
        mean, p50, p90, p99 = (_error(middle, kind, level, measured) for level in (None, 0.5, 0.9, 0.99))
        ends = [getattr(quick, kind), found, getattr(slow, kind)]
        inside = [_holds(ends, measured, q) for q in GRID]
        return Errors(mean, p50, p90, p99, sum(inside) / len(inside))

    return Score(
        log.name,
        len(log.arrivals),
        middle.unanswered,
        step.spread,
        errors("ttft", log.ttft),
        errors("tpot", log.tpot),
        errors("e2e", log.e2e),
    )


def _error(simulated: Answered, kind: str, quantile: float | None, measured: Floats) -> float:
    wanted = float(measured.mean() if quantile is None else np.quantile(measured, quantile))
    return simulated.figure(kind, quantile) / wanted - 1


def _holds(ends: list[Floats], measured: Floats, q: float) -> bool:
    """Whether a measured quantile lies between those of quick and slow steps, as far as so few requests tell."""
    wanted = float(np.quantile(measured, q))
    off = _TAIL * float(np.sqrt(q * (1 - q) / max(1, len(measured))))
    low = min(float(np.quantile(values, max(0.0, q - off))) for values in ends if len(values))
    high = max(float(np.quantile(values, min(1.0, q + off))) for values in ends if len(values))
    return low <= wanted <= high
