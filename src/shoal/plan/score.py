"""Predictions against measured rows: errors by model, system, engine, mode and regime, and interval coverage."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from shoal.plan.deployment import load_of, stack_loads
from shoal.plan.estimator import Array, Predictions, ServingEstimator
from shoal.plan.intervals import REGIMES, regimes_of
from shoal.plan.rows import Row
from shoal.specs.errors import SpecError


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors, as fractions of the measured value, the share of rows inside the interval, and the
    median of the interval's upper over its lower end."""

    median_error: float
    mean_error: float
    coverage90: float
    width: float

    def as_dict(self) -> dict[str, float]:
        return {
            "median_error": self.median_error,
            "mean_error": self.mean_error,
            "coverage90": self.coverage90,
            "width": self.width,
        }


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that share something."""

    rows: int
    tpot: Errors
    ttft: Errors

    def as_dict(self) -> dict[str, object]:
        return {"rows": self.rows, "tpot": self.tpot.as_dict(), "ttft": self.ttft.as_dict()}


@dataclass(frozen=True, slots=True)
class Score:
    """Every row's prediction and the errors over all of them and over slices."""

    rows: tuple[Row, ...]
    predictions: Predictions
    regimes: tuple[str, ...]
    answered: int
    total: Slice
    by: Mapping[str, Mapping[str, Slice]]
    """dimension (`model`, `system`, `backend`, `mode`, `generation`, `workers`, `regime`) → value → its rows."""

    def as_dict(self) -> dict[str, object]:
        """What `--json` prints."""
        return {
            "rows": len(self.rows),
            "answered": self.answered,
            "tpot": self.total.tpot.as_dict(),
            "ttft": self.total.ttft.as_dict(),
            "by": {name: {k: v.as_dict() for k, v in found.items()} for name, found in self.by.items()},
        }


def score_rows(rows: Sequence[Row], estimator: ServingEstimator) -> Score:
    """Predict every row and compare."""
    if not rows:
        raise SpecError("rows", 0, "at least one measured row")
    found = estimator.many([row.deployment for row in rows])
    truth = np.array([row.ttft for row in rows]), np.array([row.tpot for row in rows])
    answered = np.isfinite(found.ttft) & np.isfinite(found.tpot) & (found.ttft > 0) & (found.tpot > 0)
    loads = stack_loads([load_of(row.deployment) for row in rows])
    regimes = tuple(REGIMES[number] for number in regimes_of(loads, found.outcome).tolist())
    known = [name != "split, workers assumed" for name in regimes]
    keys: dict[str, list[str]] = {
        "model": [row.model for row in rows],
        "system": [row.system for row in rows],
        "backend": [row.backend for row in rows],
        "mode": [row.mode for row in rows],
        "generation": [row.deployment.accelerator.architecture for row in rows],
        "workers": ["known" if k else "assumed" for k in known],
        "regime": list(regimes),
    }
    by = {
        name: {key: _slice(found, truth, np.array([v == key for v in values])) for key in sorted(set(values))}
        for name, values in keys.items()
    }
    everything = _slice(found, truth, np.full(len(rows), True))
    return Score(tuple(rows), found, regimes, int(answered.sum()), everything, by)


def _slice(found: Predictions, truth: tuple[Array, Array], mask: Array) -> Slice:
    def errors(name: str, measured: Array) -> Errors:
        mean, low, high = (getattr(found, name + suffix)[mask] for suffix in ("", "_low", "_high"))
        true = measured[mask]
        error = np.abs(mean / true - 1.0)
        inside = (low <= true) & (true <= high)
        return Errors(
            round(float(np.median(error)), 4), round(float(np.mean(error)), 4), round(float(np.mean(inside)), 4),
            round(float(np.median(high / low)), 2),
        )  # fmt: skip

    return Slice(int(mask.sum()), errors("tpot", truth[1]), errors("ttft", truth[0]))


_COLUMNS: Sequence[tuple[str, Callable[[Predictions, int], float]]] = (
    ("predicted_ttft_ms", lambda p, i: p.ttft[i] * 1e3),
    ("low_ttft_ms", lambda p, i: p.ttft_low[i] * 1e3),
    ("high_ttft_ms", lambda p, i: p.ttft_high[i] * 1e3),
    ("predicted_tpot_ms", lambda p, i: p.tpot[i] * 1e3),
    ("low_tpot_ms", lambda p, i: p.tpot_low[i] * 1e3),
    ("high_tpot_ms", lambda p, i: p.tpot_high[i] * 1e3),
)


def write_csv(score: Score, handle: TextIO) -> None:
    """One line a row: what was measured, what was predicted, and the errors as fractions."""
    writer = csv.writer(handle)
    names = [name for name, _ in _COLUMNS]
    writer.writerow(
        ["line", "id", "model", "system", "backend", "mode", "regime", "ttft_ms", "tpot_ms", *names, "ttft_error",
         "tpot_error"]
    )  # fmt: skip
    p = score.predictions
    for i, row in enumerate(score.rows):
        values = [f"{column(p, i):.4f}" for _, column in _COLUMNS]
        errors = [f"{p.ttft[i] / row.ttft - 1:.4f}", f"{p.tpot[i] / row.tpot - 1:.4f}"]
        measured = [f"{row.ttft * 1e3:.4f}", f"{row.tpot * 1e3:.4f}"]
        writer.writerow(
            [
                row.line,
                row.id,
                row.model,
                row.system,
                row.backend,
                row.mode,
                score.regimes[i],
                *measured,
                *values,
                *errors,
            ]
        )


def write_plot(score: Score, path: Path) -> None:
    """Predicted against measured, both axes logarithmic, one panel each for TPOT and TTFT. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("plot", str(path), "matplotlib installed: pip install 'shoal[report]'") from None
    figure = Figure(figsize=(11, 5), layout="constrained")
    p = score.predictions
    panels = (
        ("TPOT", [r.tpot for r in score.rows], p.tpot, score.total.tpot),
        ("TTFT", [r.ttft for r in score.rows], p.ttft, score.total.ttft),
    )
    for axes, (name, measured, predicted, errors) in zip(figure.subplots(1, 2), panels, strict=True):
        for regime in REGIMES:
            at = [i for i, found in enumerate(score.regimes) if found == regime]
            if at:
                axes.scatter([measured[i] * 1e3 for i in at], predicted[at] * 1e3, s=5, alpha=0.5, label=regime)
        ends = [min(measured) * 1e3, max(measured) * 1e3]
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel=f"measured {name} (ms)", ylabel=f"predicted {name} (ms)")
        axes.set_title(f"{name}: median error {errors.median_error:.1%}, in interval {errors.coverage90:.1%}")
        axes.legend(fontsize=7)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise SpecError("plot", str(path), f"a path that can be written ({error})") from None
