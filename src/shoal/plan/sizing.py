"""How much one replica takes within the targets, and how many replicas that makes: all candidates at once.

Every candidate is evaluated at a row of loads from one request to all that its memory holds; targets are then
crossed by interpolation on logarithms. Predictions are made non-decreasing in load first, so that "the most it
takes" has one meaning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shoal.plan.candidates import Candidate
from shoal.plan.deployment import UNLIMITED, Deployment, Pool, stack_constants, stack_work
from shoal.plan.engine_constants import Constants
from shoal.plan.estimator import Predictions, ServingEstimator, stack_kinds, width_factor
from shoal.plan.kv import KV_DTYPE_BYTES
from shoal.plan.numeric import Real
from shoal.plan.pool_work import PoolWork, cache_room, pool_work, precision_of
from shoal.plan.question import Question
from shoal.plan.residual import Kind, kind_of
from shoal.plan.serving import Load
from shoal.plan.work import ModelWork

Array = npt.NDArray[np.float64]
Pick = npt.NDArray[np.intp]
_Table = TypeVar("_Table", PoolWork, Constants, Kind)
POINTS = 12
"""Loads at which each candidate is evaluated."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds at the percentile asked for, monotone in load; [candidates] or [candidates, points]."""

    ttft: Array
    tpot: Array
    ttft_low: Array
    ttft_high: Array
    tpot_low: Array
    tpot_high: Array

    def at(self, end: str) -> tuple[Array, Array]:
        """(TTFT, TPOT) at the `mean`, `low` or `high` end."""
        if end == "mean":
            return self.ttft, self.tpot
        return (self.ttft_low, self.tpot_low) if end == "low" else (self.ttft_high, self.tpot_high)


class CandidateTable:
    """Candidates stacked into arrays, ready to be evaluated at any load."""

    def __init__(self, question: Question, candidates: Sequence[Candidate], model: ModelWork) -> None:
        self.question = question
        self.candidates = candidates
        self.estimator = ServingEstimator()
        self._model = model
        self._constants: dict[tuple[str, str, str, bool], tuple[Constants, Kind, float]] = {}
        self._works: dict[tuple[str, str, object], PoolWork] = {}
        self.world: Array = np.array([float(c.layout.world) for c in candidates])
        work = stack_work([self._work(c) for c in candidates])
        # The time model leaves room for KV by a rule of thumb; here the exact room is known: weights are set to
        # what makes its rule arrive there.
        room = np.array([c.kv_room for c in candidates])
        self.work = replace(work, weight_bytes=cache_room(replace(work, weight_bytes=0.0 * room)) - room)
        self.whole = self._tables(split=False)
        self.parted = self._tables(split=True)

    def template(self, c: Candidate, split: bool = False) -> Deployment:
        """The candidate as the time model's own unit of question, one replica with one request."""
        load = self.question.workload
        pool = Pool(c.layout)
        return Deployment(
            self._model, c.accelerator, c.weights.precision, c.engine.engine, pool,
            load.input.mean, load.output.mean, 1.0, pool if split else None,
        )  # fmt: skip

    def _work(self, c: Candidate) -> PoolWork:
        key = (c.accelerator.name, c.weights.precision, c.layout)
        if key not in self._works:
            precision = precision_of(c.weights.precision, self._model)
            self._works[key] = pool_work(self._model, c.accelerator, c.layout, precision)
        return self._works[key]

    def _tables(self, split: bool) -> tuple[Constants, Kind, Array]:
        found: list[tuple[Constants, Kind, float]] = []
        for c in self.candidates:
            key = (c.accelerator.name, c.weights.precision, c.engine.engine, split)
            if key not in self._constants:
                d = self.template(c, split)
                self._constants[key] = (self.estimator.constants(d), kind_of(d), width_factor(d))
            found.append(self._constants[key])
        bytes_ = np.array([KV_DTYPE_BYTES[c.kv_dtype] for c in self.candidates])
        constants = replace(stack_constants([f[0] for f in found]), cache_bytes=bytes_)
        return constants, stack_kinds([f[1] for f in found]), np.array([f[2] for f in found])

    def evaluate(self, rows: Pick, concurrency: Array) -> Times:
        """Aggregated replicas: candidate `rows[i]` at `concurrency[i]` requests in flight on one replica."""
        work = _take(self.work, rows)
        constants, kind, width = self._parts(self.whole, rows)
        ones = np.ones(len(rows))
        load = self._load(concurrency, ones, ones, split=False, rows=rows)
        found = self.estimator.evaluate(work, self._first(work), load, constants, kind, width)
        return _at_percentile(found, self.question.slo.percentile)

    def evaluate_split(
        self, decode: Pick, prefill: Pick, concurrency: Array, workers: Array, prefill_workers: Array
    ) -> Times:
        """Split pools: decode layout `decode[i]` × `workers[i]`, prefill `prefill[i]` × `prefill_workers[i]`,
        `concurrency[i]` requests in flight over all of them."""
        constants, kind, width = self._parts(self.parted, decode)
        load = self._load(concurrency, workers, prefill_workers, split=True, rows=decode)
        first = self._first(_take(self.work, prefill))
        found = self.estimator.evaluate(_take(self.work, decode), first, load, constants, kind, width)
        return _at_percentile(found, self.question.slo.percentile)

    def first(self, rows: Pick) -> PoolWork:
        """Prefill work of these candidates."""
        return self._first(_take(self.work, rows))

    def _first(self, work: PoolWork) -> PoolWork:
        """Work of prefill where a share of the prompt is in the cache: uncached tokens are multiplied and sent,
        and each attends to everything before it."""
        hit = self.question.workload.prefix_hit
        if not hit:
            return work
        return replace(
            work,
            attention_ops=work.attention_ops * (1 - hit),
            expert_ops=work.expert_ops * (1 - hit),
            prefill_ops=work.prefill_ops * (1 - hit * hit),
            hidden=work.hidden * (1 - hit),
        )

    def _parts(self, tables: tuple[Constants, Kind, Array], rows: Pick) -> tuple[Constants, Kind, Array]:
        constants, kind, width = tables
        return _take(constants, rows), _take(kind, rows), width[rows]

    def _load(self, concurrency: Array, workers: Array, prefill: Array, split: bool, rows: Pick) -> Load:
        lengths = self.question.workload
        ones = np.ones(len(rows))
        return Load(
            input_tokens=lengths.input.mean * ones,
            output_tokens=lengths.output.mean * ones,
            concurrency=concurrency,
            workers=workers,
            prefill_workers=prefill,
            known_workers=ones,
            split=ones if split else 0.0 * ones,
            running_limit=UNLIMITED * ones,
        )


def _take(table: _Table, rows: Pick) -> _Table:
    """These rows of every array of a table."""
    return replace(table, **{name: getattr(table, name)[rows] for name in table.__dataclass_fields__})


def _at_percentile(found: Predictions, percentile: float) -> Times:
    """From the median to another percentile of requests.

    What a request waits behind others is taken as exponential, so that its p-quantile is ln(1/(1−p))/ln 2 medians;
    a stream's interruptions are as many as others join while it runs, a Poisson count of that mean.
    """
    share = percentile / 100.0
    out = found.outcome
    queued = np.clip(1.0 - out.prefill / np.maximum(found.ttft, 1e-12), 0.0, 1.0)
    ttft = 1.0 + queued * (math.log(1.0 / (1.0 - share)) / math.log(2.0) - 1.0)
    z = NormalDist().inv_cdf(share)
    interrupted = np.clip(1.0 - out.decode_step / np.maximum(found.tpot, 1e-12), 0.0, 1.0)
    tpot = 1.0 + interrupted * np.maximum(z / np.sqrt(np.maximum(out.running - 1.0, 1.0)), -0.5)
    return Times(
        found.ttft * ttft, found.tpot * tpot, found.ttft_low * ttft, found.ttft_high * ttft,
        found.tpot_low * tpot, found.tpot_high * tpot,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grid:
    """Loads of each candidate and the times at them, [candidates, points]."""

    load: Array
    times: Times


def grid(table: CandidateTable) -> Grid:
    """Every candidate at `POINTS` loads, from one request to the most it holds."""
    question = table.question
    largest = np.array([float(c.largest) for c in table.candidates])
    if question.workload.users is not None:
        largest = np.minimum(largest, math.ceil(question.workload.users / (1 - question.headroom)))
    powers = np.linspace(0.0, 1.0, POINTS)
    loads = np.maximum(largest[:, None], 1.0) ** powers[None, :]
    rows = np.repeat(np.arange(len(largest)), POINTS)
    flat = table.evaluate(rows, loads.ravel())
    shaped = {n: np.maximum.accumulate(getattr(flat, n).reshape(loads.shape), axis=1) for n in Times.__slots__}
    return Grid(loads, Times(**shaped))


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one replica takes, [candidates]; 0 where not one request meets the targets."""

    requests: Array
    """In flight; a whole number."""
    rate: Array
    """Requests a second at that load."""
    tight: npt.NDArray[np.str_]
    """`ttft` or `tpot` where a target is what ends it, else an empty string."""


def capacity(question: Question, found: Grid, end: str = "mean") -> Capacity:
    """The largest load whose times, at this end of their intervals, meet every target."""
    ttft, tpot = found.times.at(end)
    targets = (("ttft", ttft, question.slo.ttft), ("tpot", tpot, question.slo.tpot))
    logs = np.log(found.load)
    reach = logs[:, -1].copy()
    passed = np.ones(len(reach), dtype=bool)
    tight = np.full(len(reach), "", dtype="<U4")
    for name, values, target in targets:
        if target is None:
            continue
        crossing = _crossing(logs, np.log(values), math.log(target))
        passed &= values[:, 0] <= target
        earlier = crossing < reach - 1e-9
        tight[earlier] = name
        reach = np.minimum(reach, crossing)
    requests = np.where(passed, np.floor(np.exp(reach) * (1 + 1e-9)), 0.0)
    outputs = question.workload.output.mean
    log_load = np.log(np.maximum(requests, 1.0))
    taken = interpolate(logs, ttft, log_load) + (outputs - 1.0) * interpolate(logs, tpot, log_load)
    return Capacity(requests, requests / taken, tight)


def _crossing(x: Array, y: Array, target: float) -> Array:
    """Where each row of y(x), non-decreasing, passes `target`; the last x where it never does."""
    above = y > target
    first = np.where(above.any(axis=1), above.argmax(axis=1), y.shape[1])
    after = np.clip(first, 1, y.shape[1] - 1)
    rows = np.arange(len(y))
    y0, y1 = y[rows, after - 1], y[rows, after]
    x0, x1 = x[rows, after - 1], x[rows, after]
    share = np.clip((target - y0) / np.maximum(y1 - y0, 1e-12), 0.0, 1.0)
    crossing: Array = np.where(first >= y.shape[1], x[:, -1], x0 + share * (x1 - x0))
    return crossing


def interpolate(x: Array, y: Array, at: Array) -> Array:
    """Each row of y over x, at one point of its own; x ascending."""
    after = np.clip((x < at[:, None]).sum(axis=1), 1, x.shape[1] - 1)
    rows = np.arange(len(x))
    x0, x1 = x[rows, after - 1], x[rows, after]
    share = np.clip((at - x0) / np.maximum(x1 - x0, 1e-12), 0.0, 1.0)
    values: Array = y[rows, after - 1] * (1 - share) + y[rows, after] * share
    return values


def replicas_needed(question: Question, found: Capacity) -> Array:
    """Replicas for the peak, spares left out; infinite where not one request meets the targets."""
    usable = np.maximum(1.0, np.floor(found.requests * (1 - question.headroom)))
    needed = np.ones(len(usable))
    load = question.workload
    with np.errstate(divide="ignore", invalid="ignore"):
        if load.users is not None:
            needed = np.maximum(needed, np.ceil(load.users / usable))
        if load.rate is not None:
            each = found.rate * usable / np.maximum(found.requests, 1.0)
            needed = np.maximum(needed, np.ceil(load.rate / each))
    return np.where(found.requests >= 1, needed, np.inf)


def load_of_replica(question: Question, found: Grid, replicas: Real) -> Array:
    """Requests in flight of each replica when `replicas` share the peak evenly."""
    load = question.workload
    shared = np.zeros(len(found.load))
    if load.users is not None:
        shared = load.users / replicas
    if load.rate is not None:
        ttft, tpot = found.times.at("mean")
        rates = found.load / (ttft + (load.output.mean - 1.0) * tpot)
        rising = np.maximum.accumulate(rates, axis=1)
        wanted = load.rate / replicas
        logs = interpolate(rising, np.log(found.load), wanted)
        shared = np.maximum(shared, np.exp(logs))
    return np.maximum(shared, 1.0)
