"""A progress bar for offline generation: prompts done, and tokens a second."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class GenerationProgress:
    """Shown on stderr when that is a terminal and `show` holds; free of charge otherwise."""

    def __init__(self, total: int, *, show: bool) -> None:
        console = Console(stderr=True)
        self._tokens = 0
        self._progress: Progress | None = None
        if show and console.is_terminal:
            self._progress = Progress(
                TextColumn("generating"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[tokens]} tokens"),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=total, tokens=0)

    def advance(self, tokens: int, finished: bool) -> None:
        if self._progress is None:
            return
        self._tokens += tokens
        self._progress.update(self._task, advance=int(finished), tokens=self._tokens)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
