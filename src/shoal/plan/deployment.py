"""A deployment to predict, and its bundle of precomputed work: the planner's unit of question."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shoal.plan.engine_constants import NAMES, Constants, Mode
from shoal.plan.numeric import Real
from shoal.plan.pool_work import PoolWork, pool_work, precision_of
from shoal.plan.serving import Load
from shoal.plan.work import ModelWork
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout

UNLIMITED = 1e9


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of one layout."""

    layout: Layout
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on machines, and the closed loop of requests that it serves."""

    model: ModelWork
    accelerator: Accelerator
    precision: str
    """`bf16`, `fp8`, `int8`, `fp4` or `int4`."""
    backend: str
    """Engine family: `trtllm`, `vllm`, `sglang`, `shoal`; any other is answered with a wider interval."""
    pool: Pool
    """What decodes (and, unless `prefill` is given, prefills too)."""
    input_tokens: float
    output_tokens: float
    concurrency: float
    prefill: Pool | None = None
    """The prefill pool of a split deployment."""
    assumed: bool = False
    """Numbers of workers or the layout were assumed, not stated."""
    running_limit: float = UNLIMITED
    """Most sequences that one worker runs at a time (`max_num_seqs`)."""

    def __post_init__(self) -> None:
        for field in ("input_tokens", "output_tokens", "concurrency", "running_limit"):
            value = getattr(self, field)
            if not 0 < value <= UNLIMITED:
                raise SpecError(f"deployment.{field}", value, "a number above 0, at most a thousand million")

    @property
    def mode(self) -> Mode:
        return "agg" if self.prefill is None else "disagg"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything of a deployment that does not depend on lengths and concurrency."""

    work: PoolWork
    first: PoolWork


def prepare(d: Deployment) -> Prepared:
    """The per-device work of both pools. Worth keeping: a search varies lengths and counts far more than this."""
    precision = precision_of(d.precision, d.model)
    work = pool_work(d.model, d.accelerator, d.pool.layout, precision)
    first = work if d.prefill is None else pool_work(d.model, d.accelerator, d.prefill.layout, precision)
    return Prepared(work, first)


def load_of(d: Deployment) -> Load:
    """The deployment's load as floats."""
    return Load(
        input_tokens=float(d.input_tokens),
        output_tokens=float(d.output_tokens),
        concurrency=float(d.concurrency),
        workers=float(d.pool.workers),
        prefill_workers=float(d.prefill.workers if d.prefill else d.pool.workers),
        known_workers=0.0 if d.assumed else 1.0,
        split=0.0 if d.prefill is None else 1.0,
        running_limit=float(d.running_limit),
    )


def _columns(items: Sequence[object], names: Sequence[str]) -> dict[str, Real]:
    return {name: np.array([getattr(item, name) for item in items], dtype=float) for name in names}


_WORK = tuple(f.name for f in fields(PoolWork))
_LOAD = tuple(f.name for f in fields(Load))


def stack_work(items: Sequence[PoolWork]) -> PoolWork:
    """Many cases' work as arrays."""
    return PoolWork(**_columns(items, _WORK))


def stack_loads(items: Sequence[Load]) -> Load:
    return Load(**_columns(items, _LOAD))


def stack_constants(items: Sequence[Constants]) -> Constants:
    return Constants(**_columns(items, NAMES))
