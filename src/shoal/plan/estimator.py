"""Predicting a deployment's TTFT and TPOT with intervals: physics, correction, floors, width.

`ServingEstimator.estimate` answers one deployment in well under 0.1 ms once its layout has been seen; `many`
answers thousands at a time in numpy. Both evaluate the same formulas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.plan.artifact import Artifact, ensemble, shipped
from shoal.plan.deployment import (
    Deployment,
    Prepared,
    load_of,
    prepare,
    stack_constants,
    stack_loads,
    stack_work,
)
from shoal.plan.engine_constants import Constants, resolve
from shoal.plan.intervals import (
    Familiarity,
    IntervalTable,
    familiarity,
    own_fit,
    regimes_of,
    stack_familiarity,
)
from shoal.plan.numeric import ARRAY, SCALAR, Real
from shoal.plan.pool_work import PoolWork
from shoal.plan.residual import Bundle, Ensemble, Kind, features, kind_of
from shoal.plan.serving import Load, Outcome, closed_loop
from shoal.plan.step_time import Estimate, RooflineStepTime

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds. The outcome says which quantities led here."""

    ttft: Estimate
    tpot: Estimate
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Predictions:
    """Many predictions as arrays of seconds."""

    ttft: Array
    ttft_low: Array
    ttft_high: Array
    tpot: Array
    tpot_low: Array
    tpot_high: Array
    outcome: Outcome


def tpot_floor(work: PoolWork) -> Real:
    """Seconds that reading a device's dense weights takes at full bandwidth: no token is quicker."""
    return work.dense_bytes / work.bandwidth


class ServingEstimator:
    """Predictions from one set of constants. Keeps the per-layout work it has seen."""

    def __init__(self, artifact: Artifact | None = None) -> None:
        self.artifact = shipped() if artifact is None else artifact
        a = self.artifact
        self._tpot_trees: Ensemble = ensemble(a.tpot_trees)
        self._ttft_trees: Ensemble = ensemble(a.ttft_trees)
        self._tpot_scale: Ensemble = ensemble(a.tpot_scale)
        self._ttft_scale: Ensemble = ensemble(a.ttft_scale)
        self._bundle = Bundle([self._tpot_trees, self._ttft_trees, self._tpot_scale, self._ttft_scale])
        self._intervals = IntervalTable(a.intervals, a.own)
        self._constants: dict[tuple[str, str, str, str, int | None], Constants] = {}
        self._prepared: dict[tuple[object, ...], tuple[Prepared, Constants, Kind, Familiarity]] = {}

    def constants(self, d: Deployment) -> Constants:
        """The calibrated constants for this deployment's engine, machine generation, precision and mode."""
        place = own_fit(d, self.artifact.own)
        key = (d.backend, d.accelerator.architecture, d.precision, d.mode, place)
        if key not in self._constants:
            own = {} if place is None else self.artifact.own[place].offsets
            self._constants[key] = resolve(self.artifact.base, self.artifact.offsets, *key[:3], d.mode, own)
        return self._constants[key]

    def familiarity(self, d: Deployment) -> Familiarity:
        """What of this deployment the constants were fitted to."""
        return familiarity(d, self.artifact.seen, self.artifact.engines, self.artifact.own)

    def step_time(self, d: Deployment) -> RooflineStepTime:
        """The step-time model of this deployment's (decoding) workers."""
        ready = self._ready(d)
        spread = self._intervals.spread(ready[3], math.exp(self.artifact.scale_base[0]))
        return RooflineStepTime(ready[0].work, ready[1], spread)

    def estimate(self, d: Deployment) -> Prediction:
        """TTFT and TPOT of one deployment, in seconds."""
        ready, k, kind, known = self._ready(d)
        load = load_of(d)
        out = closed_loop(ready.work, ready.first, k, load, SCALAR)
        row = np.array(features(ready.work, ready.first, load, kind, out, SCALAR))
        a = self.artifact
        tpot_log, ttft_log, tpot_wide, ttft_wide = self._bundle.one(row)
        trees, scaled = float(np.asarray(known.trees)), float(np.asarray(known.scaled))
        tpot = (
            out.tpot
            * math.exp(tpot_log * trees * float(np.asarray(known.tpot_trust)))
            * float(np.asarray(known.tpot_factor))
        )
        ttft = (
            out.ttft
            * math.exp(ttft_log * trees * float(np.asarray(known.ttft_trust)))
            * float(np.asarray(known.ttft_factor))
        )
        floor = tpot_floor(ready.work)
        tpot_width = math.exp((a.scale_base[0] + tpot_wide * trees) * scaled)
        ttft_width = math.exp((a.scale_base[1] + ttft_wide * trees) * scaled)
        tpot_low, tpot_high, ttft_low, ttft_high = self._intervals.quantiles(known, regimes_of(load, out)).tolist()
        return Prediction(
            ttft=_interval(ttft, ttft_low * ttft_width, ttft_high * ttft_width, 0.0),
            tpot=_interval(tpot, tpot_low * tpot_width, tpot_high * tpot_width, floor),
            outcome=out,
        )

    def many(self, deployments: Sequence[Deployment]) -> Predictions:
        """TTFT and TPOT of many deployments at once."""
        ready = [self._ready(d) for d in deployments]
        work = stack_work([r[0].work for r in ready])
        first = stack_work([r[0].first for r in ready])
        load = stack_loads([load_of(d) for d in deployments])
        k = stack_constants([r[1] for r in ready])
        kinds = stack_kinds([r[2] for r in ready])
        return self.evaluate(work, first, load, k, kinds, stack_familiarity([r[3] for r in ready]))

    def evaluate(
        self, work: PoolWork, first: PoolWork, load: Load, k: Constants, kind: Kind, known: Familiarity,
        first_k: Constants | None = None,
    ) -> Predictions:  # fmt: skip
        """The same for cases already stacked into arrays: what a search calls. `first_k` are the constants of a
        prefill pool on another machine."""
        out = closed_loop(work, first, k, load, ARRAY, first_k)
        table = feature_table(work, first, load, kind, out)
        tpot_log, ttft_log, tpot_wide, ttft_wide = self._bundle.many(table)
        a = self.artifact
        floor, scaled = tpot_floor(work), np.asarray(known.scaled)
        tpot = np.maximum(out.tpot * np.exp(tpot_log * known.trees * known.tpot_trust) * known.tpot_factor, floor)
        ttft = out.ttft * np.exp(ttft_log * known.trees * known.ttft_trust) * known.ttft_factor
        tpot_width = np.exp((a.scale_base[0] + tpot_wide * known.trees) * scaled)
        ttft_width = np.exp((a.scale_base[1] + ttft_wide * known.trees) * scaled)
        tpot_low, tpot_high, ttft_low, ttft_high = self._intervals.quantiles(known, regimes_of(load, out))
        return Predictions(
            ttft=ttft,
            ttft_low=ttft * np.exp(ttft_low * ttft_width),
            ttft_high=ttft * np.exp(ttft_high * ttft_width),
            tpot=tpot,
            tpot_low=np.maximum(tpot * np.exp(tpot_low * tpot_width), floor),
            tpot_high=np.maximum(tpot * np.exp(tpot_high * tpot_width), floor),
            outcome=out,
        )

    def _ready(self, d: Deployment) -> tuple[Prepared, Constants, Kind, Familiarity]:
        first = d.prefill.layout if d.prefill else None
        key = (d.model.name, d.accelerator.name, d.precision, d.backend, d.pool.layout, first)
        found = self._prepared.get(key)
        if found is None:
            found = (prepare(d), self.constants(d), kind_of(d), self.familiarity(d))
            self._prepared[key] = found
        return found


def _interval(mean: float, low: float, high: float, floor: float) -> Estimate:
    mean = max(mean, floor)
    return Estimate(mean, max(mean * math.exp(low), floor), max(mean * math.exp(high), floor))


def stack_kinds(items: Sequence[Kind]) -> Kind:
    """Many cases' indicators as arrays."""
    names = Kind.__dataclass_fields__
    return Kind(**{name: np.array([getattr(item, name) for item in items], dtype=float) for name in names})


def feature_table(work: PoolWork, first: PoolWork, load: Load, kind: Kind, out: Outcome) -> Array:
    """The features as a table [cases, features]."""
    return np.column_stack(features(work, first, load, kind, out, ARRAY))
