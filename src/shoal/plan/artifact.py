"""The fitted constants as a committed JSON file: what `calibrate` writes and every prediction reads."""

import functools
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec

from shoal.plan.intervals import IntervalCell, OwnFit
from shoal.plan.residual import FEATURES, Ensemble, Tree
from shoal.specs.errors import SpecError

VERSION = 2
SHIPPED = "serving.json"


class TreeTable(msgspec.Struct, frozen=True, array_like=True):
    """One oblivious tree as stored: feature numbers, thresholds, answers."""

    features: tuple[int, ...]
    thresholds: tuple[float, ...]
    leaves: tuple[float, ...]


class Quality(msgspec.Struct, frozen=True):
    """Residuals over some rows: errors as fractions of the measured value, coverage of the 90 % interval, and the
    median of its upper over its lower end."""

    rows: int
    tpot_median: float
    tpot_mean: float
    tpot_coverage: float
    tpot_width: float
    ttft_median: float
    ttft_mean: float
    ttft_coverage: float
    ttft_width: float


class StepFactors(msgspec.Struct, frozen=True):
    """Step times that `shoal simulate fit` found, as multiples of the planner's (`sim.fit.PARAMETERS`)."""

    engine: str
    machine: str
    model: str
    """Of which runs were fitted; others on the machine share the factors, with a wider interval."""
    factors: tuple[float, ...]
    spread: float
    """Upper end of the 90 % interval of a step over its mean."""
    runs: tuple[str, ...]


class Artifact(msgspec.Struct, frozen=True):
    """Everything that a fit found. Logarithms of constants, trees, intervals, and how well it did."""

    version: int
    fitted: str
    """ISO date."""
    source: str
    """What it was fitted to, in words."""
    base: dict[str, float]
    offsets: dict[str, dict[str, dict[str, float]]]
    features: tuple[str, ...]
    tpot_trees: tuple[TreeTable, ...]
    ttft_trees: tuple[TreeTable, ...]
    tpot_scale: tuple[TreeTable, ...]
    ttft_scale: tuple[TreeTable, ...]
    scale_base: tuple[float, float]
    """Logarithms of the scale of TPOT and TTFT residuals before `*_scale` corrects them."""
    intervals: tuple[IntervalCell, ...]
    seen: tuple[str, ...]
    """Every "model key|machine" that has rows in the fit."""
    engines: tuple[str, ...]
    quality: dict[str, dict[str, Quality]]
    """What a fit left out → slice (`all`, `workers known`, a regime, a generation) → residuals. `nothing` is in
    sample; `rows` leaves out a quarter of the rows, `models` and `machines` whole ones, `engines` and `generations`
    likewise."""
    own: tuple[OwnFit, ...] = ()
    """What a user's own measurements say of machines; none as shipped."""
    steps: tuple[StepFactors, ...] = ()
    """What a user's own runs say of step times, for simulations; none as shipped."""


def ensemble(tables: tuple[TreeTable, ...]) -> Ensemble:
    return Ensemble(tuple(Tree(tuple(zip(t.features, t.thresholds, strict=True)), t.leaves) for t in tables))


def tables(trees: Ensemble) -> tuple[TreeTable, ...]:
    return tuple(
        TreeTable(tuple(f for f, _ in t.splits), tuple(x for _, x in t.splits), t.leaves) for t in trees.trees
    )


def read_artifact(path: Path) -> Artifact:
    """A constants file. Raises `SpecError` for one that is missing, malformed, or of another version."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError("constants", str(path), f"a readable file ({error.strerror})") from None
    return _decode(raw, str(path))


def _decode(raw: bytes, where: str) -> Artifact:
    try:
        artifact = msgspec.json.decode(raw, type=Artifact)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SpecError("constants", where, f"a file written by `shoal plan calibrate` ({error})") from None
    if artifact.version != VERSION:
        raise SpecError(f"{where}: version", artifact.version, f"{VERSION}")
    if artifact.features != FEATURES:
        raise SpecError(f"{where}: features", len(artifact.features), "this release's features: calibrate again")
    return artifact


@functools.cache
def shipped() -> Artifact:
    """The constants that ship with Shoal."""
    return _decode((files("shoal.plan") / "constants" / SHIPPED).read_bytes(), SHIPPED)


def write_artifact(artifact: Artifact, path: Path) -> None:
    """Write as JSON, one field a line where that helps a diff."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_rounded(artifact)), indent=0) + b"\n")


def _rounded(artifact: Artifact) -> Artifact:
    def trim(values: Mapping[str, float]) -> dict[str, float]:
        return {name: round(value, 5) for name, value in values.items()}

    offsets = {
        group: {level: trim(found) for level, found in levels.items()} for group, levels in artifact.offsets.items()
    }
    return msgspec.structs.replace(artifact, base=trim(artifact.base), offsets=offsets)
