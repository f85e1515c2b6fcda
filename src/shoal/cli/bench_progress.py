"""The progress bar of `shoal bench`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.workload.run import Progress


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on a terminal's standard error; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from shoal.workload.run import Silent

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Silent()
        return
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Four redraws per second: the bar must not be what the load generator waits for.
    with Bars(*columns, console=console, refresh_per_second=4, transient=True) as bars:
        yield _Bar(bars)


class _Bar:
    """Shows the run in progress; failures are counted in its label."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._task: Any = None
        self._label = ""
        self._failed = 0

    def begin(self, label: str, total: int | None) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._label, self._failed = label[:60], 0
        self._task = self._bars.add_task(self._label, total=total)

    def advance(self, ok: bool) -> None:
        self._failed += not ok
        label = self._label + (f" ({self._failed} failed)" if self._failed else "")
        self._bars.update(self._task, advance=1, description=label)
