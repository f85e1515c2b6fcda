"""Where an engine's memory goes besides weights and KV, by engine version."""

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from shoal.specs.catalog.entries import Entry
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Figure
from shoal.specs.option import spoken
from shoal.specs.quantities import Dimension
from shoal.specs.stages import StageRule

Budget = Literal["total", "free", "reserve"]
"""total: a fraction of all memory holds weights, activations and KV (vLLM) · free: a fraction of what weights and
activations leave holds KV (TensorRT-LLM) · reserve: all but a reserve holds weights and KV (SGLang)."""

_NUMBERS: tuple[tuple[str, Dimension | None], ...] = (
    ("fraction", None),
    ("sequences", None),
    ("sequences_large", None),
    ("tokens", None),
    ("tokens_large", None),
    ("large_device", "bytes"),
    ("activation_per_logit", None),
    ("activation_per_token", None),
    ("runtime", "bytes"),
    ("communicator", "bytes"),
    ("graphs", "bytes"),
    ("rotary_element", None),
    ("mxfp4_row", None),
    ("reserve", "bytes"),
    ("reserve_per_token", "bytes"),
    ("reserve_per_sequence", "bytes"),
    ("reserve_per_rank", "bytes"),
    ("reserve_per_dp_sequence", "bytes"),
    ("reserve_floor", "bytes"),
    ("reserve_floor_device", "bytes"),
)
_WHOLE = ("sequences", "sequences_large", "tokens", "tokens_large", "mxfp4_row")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory constants of one engine from one version on. Bytes, except where a name says otherwise."""

    engine: str
    since: str
    budget: Budget
    fraction: float
    """Share of total or of free memory that the engine takes; see `Budget`."""
    sequences: int
    """Sequences of a step that the engine provides for by default, on a small device."""
    tokens: int
    """Tokens of a step that the engine provides for by default, on a small device."""
    sequences_large: int
    tokens_large: int
    large_device: float = 0.0
    """From this much memory on, the `_large` defaults hold."""
    activation_per_logit: float = 0.0
    """Bytes for each (sequence of a step x vocabulary entry)."""
    activation_per_token: float = 0.0
    """Bytes for each (token of a step x hidden unit)."""
    runtime: float = 0.0
    """What the driver and libraries take outside the framework's allocator."""
    communicator: float = 0.0
    """Added where a replica has more than one rank."""
    graphs: float = 0.0
    """Captured CUDA graphs, where the engine takes them from the budget."""
    rotary_element: float = 0.0
    """Bytes an element of the rotary tables, each of (positions x rotated width); loaded with the weights."""
    mxfp4_row: int = 1
    """Rows of an MXFP4 expert's packed values (not its scales) are padded to a multiple of this many elements."""
    stages: StageRule = "even"
    """How it assigns layers to pipeline stages."""
    reserve: float = 0.0
    reserve_per_token: float = 0.0
    reserve_per_sequence: float = 0.0
    reserve_per_rank: float = 0.0
    reserve_per_dp_sequence: float = 0.0
    """For each (sequence of a step x attention-data-parallel rank), where there are several."""
    reserve_floor: float = 0.0
    """The least reserve on devices of `reserve_floor_device` or more."""
    reserve_floor_device: float = 0.0
    figures: tuple[tuple[str, Figure], ...] = ()

    def defaults(self, device_bytes: float) -> tuple[int, int]:
        """(sequences, tokens) of a step that the engine provides for on a device of this size."""
        if device_bytes >= self.large_device:
            return self.sequences_large, self.tokens_large
        return self.sequences, self.tokens


def read_engine(entry: Entry) -> EngineMemory:
    """One entry of an `engines` list; raises `SpecError` as every catalogue reader does."""
    entry.only("engine", "since", "budget", "stages", *(name for name, _ in _NUMBERS))
    since = entry.text("since")
    version_key(since, entry.field("since"))
    figures = {name: f for name, dimension in _NUMBERS if (f := entry.figure(name, dimension)) is not None}
    for required in ("fraction", "sequences", "tokens"):
        if required not in figures:
            raise SpecError(entry.field(required), None, "a figure; this field is required")
    if figures["fraction"].value > 1:
        raise SpecError(entry.field("fraction"), figures["fraction"].text, "a share of at most 1")

    values = {name: figure.value for name, figure in figures.items()}
    for name in ("sequences", "tokens"):
        values.setdefault(f"{name}_large", values[name])
    numbers: dict[str, Any] = {name: int(value) if name in _WHOLE else value for name, value in values.items()}
    return EngineMemory(
        engine=entry.text("engine"),
        since=since,
        budget=_choice(entry, "budget", get_args(Budget)),
        stages=_choice(entry, "stages", get_args(StageRule), "even"),
        figures=tuple(figures.items()),
        **numbers,
    )


def _choice(entry: Entry, name: str, accepted: tuple[T, ...], default: str | None = None) -> T:
    word = entry.text(name, default)
    for choice in accepted:
        if choice == word:
            return choice
    raise SpecError(entry.field(name), word, spoken(tuple(map(str, accepted))))


def version_key(version: str, field: str = "engine_version") -> tuple[int, ...]:
    """ "0.19.0" as (0, 19, 0), for comparing; what follows the leading numbers (rc, post) is ignored."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise SpecError(field, version, "a version that starts with numbers, such as 0.19.0")
    return tuple(int(part) for part in match[1].split("."))
