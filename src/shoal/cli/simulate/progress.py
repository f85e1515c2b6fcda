"""The progress bar of `shoal simulate`: requests, simulated time, speed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

_BETWEEN = 0.1
"""Seconds between two changes of the bar."""


class Ticker:
    """Shows how far a simulation is; nothing where there is no bar."""

    def __init__(self, bars: Any = None) -> None:
        self._bars = bars
        self._task: Any = None
        self._began = self._shown = 0.0

    def begin(self, label: str, total: int | None) -> None:
        """A simulation of so many requests begins."""
        self._began = self._shown = time.perf_counter()
        if self._bars is None:
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(label[:40], total=total, at="")

    def __call__(self, simulated: float, ended: int) -> None:
        """It is `simulated` seconds in, and `ended` requests have their fate."""
        now = time.perf_counter()
        if self._bars is None or now - self._shown < _BETWEEN:
            return
        self._shown = now
        speed = simulated / max(now - self._began, 1e-9)
        self._bars.update(self._task, completed=ended, at=f"{simulated:,.0f} s simulated, {speed:,.0f}x")


@contextlib.contextmanager
def ticker() -> Iterator[Ticker]:
    """Show a bar on a terminal's standard error; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Ticker()
        return
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[at]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as bars:
        yield Ticker(bars)
