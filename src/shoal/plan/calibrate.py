"""Calibration: a full refit from measured rows, or a rescaling from a user's own logs and reports."""

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import msgspec

from shoal.plan.artifact import Artifact
from shoal.plan.deployment import Deployment
from shoal.plan.estimator import ServingEstimator
from shoal.plan.readers import Observation
from shoal.plan.rows import AcceleratorLookup, ModelLookup, read_rows
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


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Constants with a user's own factors, and how well these explain what was measured."""

    artifact: Artifact
    observations: int
    tpot_factor: float
    """Measured over predicted, before."""
    ttft_factor: float | None
    """None where no observation has a TTFT."""
    tpot_residual: float
    """Median absolute error that is left, as a fraction."""
    ttft_residual: float | None


def rescale(base: Artifact, template: Deployment, observations: Sequence[Observation]) -> Rescaled:
    """Factors on TPOT and TTFT that make predictions agree with the observations of one deployment.

    `template` says model, machine, layout and engine, and the lengths where an observation does not. One factor
    each, the median of measured ÷ predicted: the shape of the model stays, its level moves.
    """
    if not observations:
        raise SpecError("measurements", 0, "at least one observation")
    estimator = ServingEstimator(msgspec.structs.replace(base, scale=(1.0, 1.0)))
    found = [
        (
            o,
            estimator.estimate(
                replace(
                    template,
                    concurrency=o.concurrency,
                    input_tokens=o.input_tokens or template.input_tokens,
                    output_tokens=o.output_tokens or template.output_tokens,
                )
            ),
        )
        for o in observations
    ]
    tpot = [o.tpot / p.tpot.mean for o, p in found]
    ttft = [o.ttft / p.ttft.mean for o, p in found if o.ttft is not None]
    tpot_factor, ttft_factor = median(tpot), median(ttft) if ttft else None
    artifact = msgspec.structs.replace(
        base,
        source=f"{base.source}; rescaled to {len(observations)} observations of {template.model.name}",
        scale=(tpot_factor, ttft_factor or 1.0),
    )
    return Rescaled(
        artifact=artifact,
        observations=len(observations),
        tpot_factor=tpot_factor,
        ttft_factor=ttft_factor,
        tpot_residual=median(abs(tpot_factor / ratio - 1.0) for ratio in tpot),
        ttft_residual=median(abs(ttft_factor / ratio - 1.0) for ratio in ttft) if ttft_factor else None,
    )


def factor_text(factor: float) -> str:
    """A factor as people say it: "12 % slower than predicted"."""
    change = abs(math.expm1(math.log(factor)))
    return f"{change:.0%} {'slower' if factor > 1 else 'faster'} than predicted"
