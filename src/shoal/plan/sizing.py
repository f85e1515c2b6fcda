"""Candidates of a search as arrays, evaluated by the time model at any load: all of them at once."""

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
from shoal.plan.estimator import Predictions, ServingEstimator, stack_kinds
from shoal.plan.intervals import Familiarity, stack_familiarity
from shoal.plan.kv import KV_DTYPE_BYTES
from shoal.plan.numeric import ARRAY
from shoal.plan.pairing import pool_constants, pool_familiarity
from shoal.plan.pool_work import PoolWork, cache_room, pool_work, precision_of
from shoal.plan.question import Question
from shoal.plan.residual import Kind, kind_of
from shoal.plan.serving import Load
from shoal.plan.step_time import decode_terms
from shoal.plan.work import ModelWork

Array = npt.NDArray[np.float64]
Pick = npt.NDArray[np.intp]
_Table = TypeVar("_Table", PoolWork, Constants, Kind, Familiarity)
UNBOUNDED = 1e18
"""Bytes that no cache fills."""


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
        self.estimator = ServingEstimator(question.constants)
        self._model = model
        self._constants: dict[tuple[str, str, str, bool], tuple[Constants, Kind, Familiarity]] = {}
        self._works: dict[tuple[str, str, object], PoolWork] = {}
        self.largest: Array = np.array([float(c.largest) for c in candidates])
        names = list(dict.fromkeys(c.accelerator.name for c in candidates))
        self._part = np.array([names.index(c.accelerator.name) for c in candidates])
        self.world: Array = np.array([float(c.layout.world) for c in candidates])
        work = stack_work([self._work(c) for c in candidates])
        # The time model leaves room for KV by a rule of thumb; here the exact room is known: weights are set to
        # what makes its rule arrive there.
        room = np.array([c.kv_room for c in candidates])
        self.work = replace(work, weight_bytes=cache_room(replace(work, weight_bytes=0.0 * room)) - room)
        self._unbounded = replace(self.work, weight_bytes=0.0 * room - UNBOUNDED)
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

    def _tables(self, split: bool) -> tuple[Constants, Kind, Familiarity]:
        found: list[tuple[Constants, Kind, Familiarity]] = []
        for c in self.candidates:
            key = (c.accelerator.name, c.weights.precision, c.engine.engine, split)
            if key not in self._constants:
                d = self.template(c, split)
                self._constants[key] = (self.estimator.constants(d), kind_of(d), self.estimator.familiarity(d))
            found.append(self._constants[key])
        bytes_ = np.array([KV_DTYPE_BYTES[c.kv_dtype] for c in self.candidates])
        constants = replace(stack_constants([f[0] for f in found]), cache_bytes=bytes_)
        return constants, stack_kinds([f[1] for f in found]), stack_familiarity([f[2] for f in found])

    def evaluate(
        self, rows: Pick, concurrency: Array, input_tokens: float | None = None, unlimited: bool = False
    ) -> Times:
        """Aggregated replicas: candidate `rows[i]` at `concurrency[i]` requests in flight on one replica.

        `input_tokens` stands in for the question's mean prompt; `unlimited` leaves memory out, which the gate has
        already answered for.
        """
        work = take(self._unbounded if unlimited else self.work, rows)
        constants, kind, known = self._parts(self.whole, rows)
        ones = np.ones(len(rows))
        load = self._load(concurrency, ones, ones, split=False, input_tokens=input_tokens)
        found = self.estimator.evaluate(work, self._first(work), load, constants, kind, known)
        return _at_percentile(found, self.question.slo.percentile)

    def evaluate_split(
        self, decode: Pick, prefill: Pick, concurrency: Array, workers: Array, prefill_workers: Array,
        input_tokens: float | None = None,
    ) -> Times:  # fmt: skip
        """Split pools: decode layout `decode[i]` × `workers[i]`, prefill `prefill[i]` × `prefill_workers[i]`,
        `concurrency[i]` requests in flight over all of them."""
        constants, kind, known = self._parts(self.parted, decode)
        first_constants, _, first_known = self._parts(self.parted, prefill)
        mixed = self._part[decode] != self._part[prefill]
        load = self._load(concurrency, workers, prefill_workers, split=True, input_tokens=input_tokens)
        first = self._first(take(self._unbounded, prefill))
        found = self.estimator.evaluate(
            take(self._unbounded, decode), first, load, pool_constants(constants, first_constants), kind,
            pool_familiarity(known, first_known, mixed), first_constants,
        )  # fmt: skip
        return _at_percentile(found, self.question.slo.percentile)

    def decode_seconds(self, rows: Pick, requests: Array) -> Array:
        """Seconds of a decode step of a split worker by the physical model alone, with `requests` in flight."""
        constants, _, _ = self._parts(self.parted, rows)
        work = take(self._unbounded, rows)
        sequences = np.maximum(requests / work.attention_dp / work.pp, 1.0)
        context = np.full(len(rows), self.question.workload.mean_context)
        seconds: Array = np.asarray(decode_terms(work, constants, sequences, context, ARRAY).total)
        return seconds

    def first(self, rows: Pick) -> PoolWork:
        """Prefill work of these candidates."""
        return self._first(take(self.work, rows))

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

    def _parts(
        self, tables: tuple[Constants, Kind, Familiarity], rows: Pick
    ) -> tuple[Constants, Kind, Familiarity]:
        constants, kind, known = tables
        return take(constants, rows), take(kind, rows), take(known, rows)

    def _load(
        self, concurrency: Array, workers: Array, prefill: Array, split: bool, input_tokens: float | None
    ) -> Load:
        lengths = self.question.workload
        ones = np.ones(len(concurrency))
        return Load(
            input_tokens=(lengths.input.mean if input_tokens is None else input_tokens) * ones,
            output_tokens=lengths.output.mean * ones,
            concurrency=concurrency,
            workers=workers,
            prefill_workers=prefill,
            known_workers=ones,
            split=ones if split else 0.0 * ones,
            running_limit=UNLIMITED * ones,
        )


def take(table: _Table, rows: Pick) -> _Table:
    """Return these rows of every array of a table."""
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
