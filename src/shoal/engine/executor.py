"""Carries a step to every rank and brings the result back. One rank in this process is the smallest case."""

from concurrent.futures import Future
from typing import Protocol

from shoal.engine.messages import StepCommand
from shoal.engine.ranks.stats import RankStats
from shoal.engine.worker import Worker
from shoal.policy.batching.plan import StepResult


class Executor(Protocol):
    """How the core reaches the ranks. `submit` never blocks on the step itself when ranks are other processes."""

    @property
    def max_in_flight(self) -> int:
        """Steps that may be under way at once: the number of pipeline stages."""
        ...

    def submit(self, command: StepCommand) -> "Future[StepResult]": ...

    def rank_stats(self) -> tuple[RankStats, ...]:
        """Step times by rank; empty where there is one rank. Safe to call from another thread."""
        ...

    def close(self) -> None: ...


class InProcessExecutor:
    """One rank, in the caller's thread: `submit` returns a finished future."""

    max_in_flight = 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def submit(self, command: StepCommand) -> "Future[StepResult]":
        future: Future[StepResult] = Future()
        try:
            future.set_result(self._worker.execute(command))
        except Exception as error:
            future.set_exception(error)
        return future

    def rank_stats(self) -> tuple[RankStats, ...]:
        return ()

    def close(self) -> None:
        self._worker.close()
