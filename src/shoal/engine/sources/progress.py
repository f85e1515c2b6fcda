"""How a transfer reports itself, and the bars a terminal shows for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transferred:
    """State of one transfer. `label` identifies it; `done` and `total` are bytes (total None: not known)."""

    label: str
    done: int
    total: int | None


Progress = Callable[[Transferred], None]


def silent(_: Transferred) -> None:
    """The progress of a caller that wants none."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars on stderr: bytes, rate and time left for each label. Plain closing lines where stderr is no terminal."""
    from rich import progress as widgets
    from rich.console import Console
    from rich.table import Column

    bars = widgets.Progress(
        widgets.TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", min_width=20, max_width=44)
        ),
        widgets.BarColumn(bar_width=16),
        widgets.DownloadColumn(),
        widgets.TransferSpeedColumn(),
        widgets.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, widgets.TaskID] = {}

    def show(state: Transferred) -> None:
        bars.start()  # only now: nothing is drawn where nothing is transferred; starting twice is allowed
        if state.label not in tasks:
            tasks[state.label] = bars.add_task(state.label, total=state.total)
        bars.update(tasks[state.label], completed=state.done, total=state.total)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()
