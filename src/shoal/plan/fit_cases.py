"""Measured rows as arrays, ready to be fitted or scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.plan.boost import Index
from shoal.plan.deployment import load_of, prepare, stack_loads, stack_work
from shoal.plan.engine_constants import generation_level
from shoal.plan.estimator import Array, stack_kinds
from shoal.plan.intervals import Familiarity, familiarity, model_key, stack_familiarity
from shoal.plan.pool_work import PoolWork
from shoal.plan.residual import Kind, kind_of
from shoal.plan.rows import Row
from shoal.plan.serving import Load


@dataclass(frozen=True, slots=True)
class Cases:
    """Rows as arrays: work, load, groups, weights and truth."""

    work: PoolWork
    first: PoolWork
    load: Load
    kind: Kind
    known: Familiarity
    levels: tuple[tuple[str, ...], ...]
    """For each case its level in each of `GROUPS`."""
    weight: Array
    group: Index
    """The (architecture, system) it belongs to, as a number."""
    ttft: Array
    tpot: Array

    def take(self, mask: npt.NDArray[np.bool_]) -> "Cases":
        def pick(bundle: Any) -> Any:
            names = type(bundle).__dataclass_fields__
            return type(bundle)(**{name: getattr(bundle, name)[mask] for name in names})

        levels = tuple(level for level, kept in zip(self.levels, mask, strict=True) if kept)
        return Cases(
            pick(self.work), pick(self.first), pick(self.load), pick(self.kind), pick(self.known), levels,
            self.weight[mask], self.group[mask], self.ttft[mask], self.tpot[mask],
        )  # fmt: skip


def group_name(row: Row) -> str:
    """The model on a machine that a row belongs to; names of the same architecture are one model (R1 is V3)."""
    return f"{model_key(row.deployment)}|{row.deployment.accelerator.name}"


def cases_of(rows: Sequence[Row], weights: Sequence[float]) -> Cases:
    """Rows stacked for fitting or scoring, grouped by architecture and system, all of them measured."""
    ready = [prepare(row.deployment) for row in rows]
    groups = [group_name(row) for row in rows]
    number = {name: index for index, name in enumerate(sorted(set(groups)))}
    engines = {row.backend for row in rows}
    return Cases(
        work=stack_work([r.work for r in ready]),
        first=stack_work([r.first for r in ready]),
        load=stack_loads([load_of(row.deployment) for row in rows]),
        kind=stack_kinds([kind_of(row.deployment) for row in rows]),
        known=stack_familiarity([familiarity(row.deployment, groups, engines) for row in rows]),
        levels=tuple(_levels(row) for row in rows),
        weight=np.array(weights, dtype=float),
        group=np.array([number[name] for name in groups], dtype=np.intp),
        ttft=np.array([row.ttft for row in rows]),
        tpot=np.array([row.tpot for row in rows]),
    )


def _levels(row: Row) -> tuple[str, ...]:
    d = row.deployment
    return (d.backend, generation_level(d.accelerator.architecture), d.precision, d.mode)
