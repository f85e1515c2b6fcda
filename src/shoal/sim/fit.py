"""Step times fitted to measured runs: the simulator is asked for parameters with which it gives the same latencies.

A run tells when requests came and were answered, not how long steps took. So each trial simulates the whole run;
the logarithms of simulated over measured means and quantiles are made small by least squares with finite
differences. Parameters are multiples of what the planner says of the same model on the same device, so that a fit
serves other models on it, and few runs don't carry them far away.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.policy.batching import SchedulerConfig
from shoal.policy.outcomes import Outcome
from shoal.sim.factors import PARAMETERS, front_of, start_of, step_of
from shoal.sim.fleet import ReplicaSpec, SimulatedFleet
from shoal.sim.measured import MeasuredLog
from shoal.sim.timing import FittedSeconds, RooflineSeconds, StepSeconds
from shoal.sim.world import simulate
from shoal.specs.errors import SpecError
from shoal.workload.load import Load
from shoal.workload.run import RunOptions

Floats = npt.NDArray[np.float64]
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_PULL = 0.02
"""Weight of a parameter's distance from what the planner says, in the logarithm."""
_DIFFERENCES = (0.06, 0.02)
"""Changes of a parameter, in the logarithm, by which slopes are taken, in two passes: above what one step more or
less makes, and then finer."""
_ROUNDS = 10
_FAILED = 10.0
"""What a run in which nobody was answered counts as, in the logarithm."""
_FOREVER = 1e6


@dataclass(frozen=True, slots=True)
class Aim:
    """One measured figure."""

    kind: str
    """`ttft`, `tpot` or `e2e`."""
    quantile: float | None
    """None: the mean."""
    seconds: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """One measured run: its load, the engine that answered it, and what was measured."""

    name: str
    load: Load
    scheduler: SchedulerConfig
    prior: StepSeconds
    """The planner's step times."""
    aims: tuple[Aim, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """Latencies of the requests that were answered, in seconds."""

    ttft: Floats
    tpot: Floats
    e2e: Floats
    unanswered: int

    def figure(self, kind: str, quantile: float | None) -> float:
        """One figure of them; not a number where there is none."""
        values: Floats = getattr(self, kind)
        if not len(values):
            return math.nan
        return float(values.mean() if quantile is None else np.quantile(values, quantile))


@dataclass(frozen=True, slots=True)
class StepFit:
    """What was fitted."""

    factors: tuple[float, ...]
    """On the planner's parameters, in the order of `PARAMETERS`."""
    spread: float
    """Upper end of the 90 % interval of a step over its mean."""
    residual: float
    """Root mean square of what is left, in the logarithm of latencies."""
    simulations: int

    def step(self, prior: StepSeconds) -> FittedSeconds:
        """Step times of the model that was fitted; `prior`: what the planner says of them."""
        return FittedSeconds(step_of(prior, self.factors), self.spread)

    @property
    def front(self) -> float:
        """Seconds between a request's arrival and its reaching the scheduler."""
        return front_of(self.factors)


def target_of(log: MeasuredLog, scheduler: SchedulerConfig, prior: StepSeconds) -> Target:
    """A log as what a fit aims at: means and quantiles of TTFT, TPOT and E2E."""
    aims = []
    for kind, values in (("ttft", log.ttft), ("tpot", log.tpot), ("e2e", log.e2e)):
        positive = np.maximum(values, 1e-4)
        aims.append(Aim(kind, None, float(positive.mean()), 4.0))
        aims += [Aim(kind, q, float(np.quantile(positive, q)), 2.0 if q == 0.9 else 1.0) for q in QUANTILES]
    return Target(log.name, log.load(), scheduler, prior, tuple(aims))


def replay(load: Load, scheduler: SchedulerConfig, step: StepSeconds, front: float = 0.0) -> Answered:
    """Simulate a load on one replica."""
    spec = ReplicaSpec(name="replica", scheduler=scheduler, step=step, max_inflight=1 << 30, front=front)
    done = simulate(SimulatedFleet(replicas=(spec,)), load, RunOptions(deadline=_FOREVER))
    whole = [a for a in done.asks if a.outcome is Outcome.OK and a.first is not None and a.last is not None]
    sent = np.asarray([a.sent for a in whole], dtype=np.float64)
    first = np.asarray([a.first for a in whole], dtype=np.float64)
    last = np.asarray([a.last for a in whole], dtype=np.float64)
    tokens = np.asarray([a.tokens for a in whole], dtype=np.float64)
    several = tokens > 1
    tpot = (last - first)[several] / (tokens[several] - 1)
    return Answered((first - sent) / 1e9, tpot / 1e9, (last - sent) / 1e9, len(done.asks) - len(whole))


def fit_steps(targets: Sequence[Target], on_trial: Callable[[int, float], None] | None = None) -> StepFit:
    """Fit one set of factors to all targets. `on_trial` is told trials so far and their residual.

    Raises SpecError without targets, or where scipy is not installed.
    """
    if not targets:
        raise SpecError("fit", 0, "at least one measured run")
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise SpecError("fit", targets[0].name, "scipy installed: pip install 'shoal[fit]'") from None
    starts = [start_of(target.prior) for target in targets]
    trials = 0
    best, least = np.zeros(len(PARAMETERS)), math.inf

    def residuals(shift: Floats) -> Floats:
        nonlocal trials, best, least
        trials += 1
        parts = [_missed(target, start + shift) for target, start in zip(targets, starts, strict=True)]
        found = np.concatenate([*parts, _PULL * shift])
        if (cost := float(found @ found)) < least:
            best, least = shift.copy(), cost
        if on_trial is not None:
            on_trial(trials, float(np.sqrt(np.mean(np.concatenate(parts) ** 2))))
        return found

    for difference in _DIFFERENCES:

        def slopes(shift: Floats, difference: float = difference) -> Floats:
            # By one step for all: steps relative to a shift of 0 would be lost in rounding.
            here = residuals(shift)
            moved = [residuals(shift + difference * row) for row in np.eye(len(shift))]
            return np.stack([(there - here) / difference for there in moved], axis=1)

        # What is minimized has steps, so that the best trial need not be the last.
        least_squares(residuals, best, jac=slopes, max_nfev=_ROUNDS, bounds=(-4, 4))
    left = np.concatenate([_missed(t, s + best) for t, s in zip(targets, starts, strict=True)])
    residual = float(np.sqrt(np.mean(left**2)))
    # 1.645 standard deviations hold 90 % of a normal distribution.
    spread = math.exp(max(0.02, 1.645 * residual))
    return StepFit(tuple(np.exp(best).tolist()), spread, residual, trials)


def _missed(target: Target, logarithms: Floats) -> Floats:
    values = np.exp(logarithms)
    try:
        got = replay(target.load, target.scheduler, RooflineSeconds(*values[:6].tolist()), float(values[6]))
    except OverflowError:
        return np.full(len(target.aims), _FAILED)
    found = np.asarray([got.figure(aim.kind, aim.quantile) for aim in target.aims])
    wanted = np.asarray([aim.seconds for aim in target.aims])
    weights = np.asarray([aim.weight for aim in target.aims])
    missed: Floats = np.where(np.isfinite(found), np.log(np.maximum(found, 1e-9) / wanted), _FAILED) * weights
    return np.clip(missed, -_FAILED, _FAILED)
