"""Figures by model and priority, of runs that have several."""

from collections.abc import Sequence

import numpy as np

from shoal.workload.objectives import Objectives
from shoal.workload.records import Record
from shoal.workload.report.document import Table, quantile_cell
from shoal.workload.run import RunResult
from shoal.workload.stats import Distribution, distribution

_LEVELS = (0.5, 0.99)


def class_table(result: RunResult, objectives: Objectives, seed: int = 0) -> Table | None:
    """A row per model and priority; None where all requests are alike."""
    classes: dict[tuple[str, int], list[Record]] = {}
    for record in result.measured:
        classes.setdefault((record.model or "", record.priority), []).append(record)
    if len(classes) < 2:
        return None
    several = len({model for model, _ in classes}) > 1, len({priority for _, priority in classes}) > 1
    rows = [
        (_name(*key, several), *_figures(classes[key], objectives, seed))
        for key in sorted(classes, key=lambda c: (c[0], c[1]))
    ]
    header = ("class", "n", "ok", "met %", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "E2E p50 ms")
    return Table(header, tuple(rows), "By model and priority" if all(several) else "")


def _name(model: str, priority: int, several: tuple[bool, bool]) -> str:
    parts = [model or "default model"] if several[0] else []
    parts += [f"priority {priority}"] if several[1] else []
    return ", ".join(parts)


def _figures(records: Sequence[Record], objectives: Objectives, seed: int) -> tuple[str, ...]:
    def spread(values: Sequence[float | None]) -> Distribution | None:
        return distribution([np.asarray([v]) for v in values if v is not None], _LEVELS, seed)

    ttft = spread([r.ttft for r in records if r.ok])
    tpot, e2e = spread([r.tpot for r in records]), spread([r.e2e for r in records])
    met = sum(objectives.met(r) for r in records) / len(records)
    return (
        str(len(records)),
        str(sum(r.ok for r in records)),
        f"{met * 100:.3g}",
        quantile_cell(ttft, 0.5),
        quantile_cell(ttft, 0.99),
        quantile_cell(tpot, 0.5),
        quantile_cell(e2e, 0.5),
    )
