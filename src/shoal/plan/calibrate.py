"""Calibration: a full refit from measured rows, or a fit of one engine on one machine to its user's own reports."""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from shoal.plan.artifact import Artifact
from shoal.plan.deployment import Deployment, load_of, prepare, stack_loads, stack_work
from shoal.plan.engine_constants import from_link, generation_level, to_link
from shoal.plan.estimator import Array, ServingEstimator
from shoal.plan.intervals import Interval, OwnFit, model_key
from shoal.plan.readers import Observation
from shoal.plan.rows import AcceleratorLookup, ModelLookup, read_rows
from shoal.plan.serving import closed_loop
from shoal.specs.errors import SpecError

MIN_ROWS = 50
"""Fewer distinct rows than this cannot inform a refit; use them to rescale."""


def calibrate_rows(
    path: Path, models: ModelLookup, accelerators: AcceleratorLookup, evaluations: int = 20
) -> Artifact:
    """Constants fitted to the rows of a file, with the fit's residuals beside them. Takes a minute or two."""
    from shoal.plan.rows import distinct

    rows = read_rows(path, models, accelerators)
    merged = len(distinct(rows))
    if merged < MIN_ROWS:
        raise SpecError("rows", merged, f"at least {MIN_ROWS} distinct measurements to refit every constant")
    try:
        from shoal.plan.cross_validation import fit_rows
    except ImportError:
        raise SpecError("calibrate", str(path), "scipy installed: pip install 'shoal[fit]'") from None
    source = f"{path.name}: {len(rows):,} rows, {merged:,} distinct"
    return fit_rows(rows, source, datetime.date.today().isoformat(), evaluations).artifact


TPOT_NOISE, TTFT_NOISE = 0.03, 0.06
"""Logarithms by which a run's means differ from those of the same run again, on a machine to itself."""
TPOT_HALF, TTFT_HALF = math.log(1.1), math.log(1.2)
"""Least half width of an interval, in the logarithm: what another workload on the same machine may differ by."""
FREE: Mapping[str, float] = MappingProxyType({
    "weight_bandwidth": 1.5, "decode_rate": 1.5, "kv_bandwidth": 1.0, "step": 2.0, "token": 2.0, "layer": 1.0,
    "interference": 1.0, "prefill_rate": 1.5, "prefill_token": 2.0, "prefill_layer": 1.5, "request": 1.5,
    "own_prefill": 0.3, "queue": 1.0, "stream": 1.0, "wait": 0.5,
})  # fmt: skip
"""Constants that measurements on an unmeasured generation may move, and one standard deviation of how far, on their
link scale."""
_STEP, _ROUNDS = 1e-4, 60


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Constants with a user's own measurements in them, and how well these are explained."""

    artifact: Artifact
    observations: int
    tpot_factor: float
    """Measured over predicted before, the median."""
    ttft_factor: float | None
    """None where no observation has a TTFT."""
    tpot_residual: float
    """Median absolute error that is left, as a fraction."""
    ttft_residual: float | None


@dataclass(frozen=True, slots=True)
class _Points:
    """Observations as arrays; TTFT is not a number where it was not measured."""

    deployments: tuple[Deployment, ...]
    tpot: Array
    ttft: Array


def rescale(base: Artifact, template: Deployment, observations: Sequence[Observation]) -> Rescaled:
    """Constants that agree with observations of one engine on one machine.

    `template` says model, machine, layout and engine, and the lengths where an observation does not. On a
    generation of hardware that the constants were fitted to, TPOT and TTFT get one factor each, the median of
    measured ÷ predicted: the shape of the model stays, its level moves. On any other, such as a processor, the
    constants themselves move, as far as the observations ask for it.
    """
    if not observations:
        raise SpecError("measurements", 0, "at least one observation")
    others = tuple(o for o in base.own if not _same(o, template))
    bare = msgspec.structs.replace(base, own=others)
    points = _points(template, observations)
    before = ServingEstimator(bare).many(points.deployments)
    tpot, ttft = points.tpot / before.tpot, points.ttft / before.ttft
    measured = np.isfinite(ttft)
    factors = float(np.median(tpot)), float(np.median(ttft[measured])) if measured.any() else 1.0
    fitted = generation_level(template.accelerator.architecture) != "other"
    offsets = {} if fitted else _offsets(bare, template, points)
    half = Interval(-TPOT_HALF, TPOT_HALF), Interval(-TTFT_HALF, TTFT_HALF)
    own = OwnFit(
        template.backend, template.accelerator.name, template.precision, model_key(template), len(observations),
        offsets, factors if fitted else (1.0, 1.0), fitted, *half,
    )  # fmt: skip
    after = ServingEstimator(msgspec.structs.replace(bare, own=(*others, own))).many(points.deployments)
    left = np.log(points.tpot / after.tpot), np.log(points.ttft / after.ttft)[measured]
    own = msgspec.structs.replace(own, tpot=_interval(left[0], TPOT_HALF), ttft=_interval(left[1], TTFT_HALF))
    artifact = msgspec.structs.replace(
        base,
        source=f"{base.source}; {len(observations)} observations of {template.model.name} on "
        f"{template.accelerator.name}",
        own=(*others, own),
    )
    return Rescaled(
        artifact=artifact,
        observations=len(observations),
        tpot_factor=factors[0],
        ttft_factor=factors[1] if measured.any() else None,
        tpot_residual=float(np.median(np.abs(np.expm1(left[0])))),
        ttft_residual=float(np.median(np.abs(np.expm1(left[1])))) if measured.any() else None,
    )


def _same(fit: OwnFit, d: Deployment) -> bool:
    return (fit.engine, fit.machine, fit.precision) == (d.backend, d.accelerator.name, d.precision)


def _points(template: Deployment, observations: Sequence[Observation]) -> _Points:
    deployments = tuple(
        replace(
            template,
            concurrency=o.concurrency,
            input_tokens=o.input_tokens or template.input_tokens,
            output_tokens=o.output_tokens or template.output_tokens,
        )
        for o in observations
    )
    ttft = [math.nan if o.ttft is None else o.ttft for o in observations]
    return _Points(deployments, np.array([o.tpot for o in observations]), np.array(ttft))


def _interval(left: Array, least: float) -> Interval:
    """What the residuals of a few runs say of another: 1.64 standard deviations, more for fewer runs."""
    count = len(left)
    spread = 0.0 if not count else 1.64 * float(np.sqrt(np.mean(left * left)))
    half = max(spread, least) * math.sqrt(1.0 + 4.0 / max(count, 1))
    return Interval(round(-half, 4), round(half, 4))


def _offsets(base: Artifact, template: Deployment, points: _Points) -> dict[str, float]:
    """Shifts of the `FREE` constants, the likeliest given the observations: damped least squares on logarithms."""
    k = ServingEstimator(base).constants(template)
    ready = [prepare(d) for d in points.deployments]
    work, first = stack_work([r.work for r in ready]), stack_work([r.first for r in ready])
    load = stack_loads([load_of(d) for d in points.deployments])
    names = tuple(FREE)
    links = np.array([to_link(name, float(getattr(k, name))) for name in names])
    width = np.array([FREE[name] for name in names])
    has_ttft = np.isfinite(points.ttft)

    def residuals(shift: Array) -> Array:
        moved = {n: from_link(n, float(link)) for n, link in zip(names, links + shift, strict=True)}
        out = closed_loop(work, first, replace(k, **moved), load)
        tpot = np.log(out.tpot / points.tpot) / TPOT_NOISE
        ttft = np.log(out.ttft / points.ttft)[has_ttft] / TTFT_NOISE
        return np.concatenate([tpot, ttft, shift / width])

    shift, damping = np.zeros(len(names)), 1.0
    here = residuals(shift)
    for _ in range(_ROUNDS):
        slope = np.stack([(residuals(shift + _STEP * e) - here) / _STEP for e in np.eye(len(names))], axis=1)
        square = slope.T @ slope
        move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slope.T @ here)
        there = residuals(shift + np.clip(move, -1.0, 1.0))
        if there @ there < here @ here:
            shift, here, damping = shift + np.clip(move, -1.0, 1.0), there, max(damping / 4.0, 1e-6)
        else:
            damping *= 4.0
    return {name: round(float(value), 5) for name, value in zip(names, shift, strict=True)}


def factor_text(factor: float) -> str:
    """A factor as people say it: "12 % slower than predicted"."""
    change = abs(math.expm1(math.log(factor)))
    return f"{change:.0%} {'slower' if factor > 1 else 'faster'} than predicted"
