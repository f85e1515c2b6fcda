"""How a load is run, and what came of it: values that a benchmark and a simulation share."""

from dataclasses import dataclass
from typing import Protocol

from shoal.workload.load import Load
from shoal.workload.records import Phase, Record


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a load is run."""

    requests: int | None = None
    """Measured requests of a closed loop; None: as many as fit, of the load or of `seconds`."""
    seconds: float | None = None
    """How long a closed loop begins measured requests."""
    concurrency: int | None = None
    """A closed loop of that many requests in flight; None: an open loop."""
    warmup: int = 0
    """Open loop: the first sessions aren't measured. Closed loop: requests that end before the window opens."""
    deadline: float = 600.0
    """Seconds for one request."""
    seed: int = 0
    salt: str = ""
    """Changes the contents of all prompts and nothing else: a new salt finds no prompt in the server's cache."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What happened. Times in seconds since the start of the run."""

    records: tuple[Record, ...]
    start: float
    """When the measured window opened."""
    end: float
    """When it closed."""
    load: str
    concurrency: int | None
    requested_rate: float | None
    """Sessions per second that were asked for; None: closed loop, or all at once."""
    partial: bool
    notes: tuple[str, ...] = ()

    @property
    def window(self) -> float:
        return self.end - self.start

    @property
    def measured(self) -> tuple[Record, ...]:
        return tuple(r for r in self.records if r.phase is Phase.MEASURED)


class Progress(Protocol):
    """Told how far a run is."""

    def begin(self, label: str, total: int | None) -> None:
        """A run of so many requests begins; None: nobody knows."""
        ...

    def advance(self, ok: bool) -> None: ...


class Silent:
    """No progress is shown."""

    def begin(self, label: str, total: int | None) -> None:
        """Nothing."""

    def advance(self, ok: bool) -> None:
        """Nothing."""


def open_window(load: Load, records: tuple[Record, ...], warmup: int) -> tuple[float, float]:
    """From the first measured arrival to a mean gap after the last; where all come at once, to the last end."""
    measured = [r for r in records if r.phase is Phase.MEASURED]
    if not measured:
        return (load.sessions[warmup].at,) * 2
    start = min(r.scheduled for r in measured)
    if load.rate is None:
        return start, max(r.ended for r in measured)
    return start, max(r.scheduled for r in measured) + 1 / load.rate
