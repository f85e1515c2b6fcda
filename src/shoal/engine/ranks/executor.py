"""Steps carried to rank processes: a command goes once to every rank that needs it, results come from those that
sample, step times from all.

              ┌─ rank 0 (stage 0) ─┐ activations
    submit ───┤                    ├───────────► rank 2 (stage 1, samples) ── result ──► future
              └─ rank 1 ...        ┘
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from shoal.engine.errors import EngineDead, EngineError, OutOfMemory
from shoal.engine.kv.budget import KvBudget
from shoal.engine.messages import StepCommand
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.traffic import Volume
from shoal.engine.ranks.launch import RankLauncher
from shoal.engine.ranks.link import (
    Allocate,
    Done,
    Execute,
    FromRank,
    LinkClosed,
    Loaded,
    Ready,
    Report,
    Reported,
    frame,
)
from shoal.engine.ranks.processes import Failure, RankProcesses
from shoal.engine.ranks.stats import RankStats
from shoal.policy.batching.plan import StepResult
from shoal.policy.experts import LayerLoad, add_loads
from shoal.specs.layout import Layout

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

WORKER = "shoal.engine.ranks.rank:load"
"""module:function that prepares a rank's worker."""
LOADING_SECONDS = 3600.0
"""Deadline of the whole start-up: a very large model on a slow disk."""
_POLL_SECONDS = 0.2
_STEP_SHARE = 0.95
"""Of step_timeout after which a step is overdue: before the core gives up, so that the rank is named."""
_OUT_OF_MEMORY = ("OutOfMemory", "MemoryError", "OutOfMemoryError")


@dataclass(slots=True)
class _Tally:
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0


@dataclass(slots=True)
class _Ticket:
    """A step under way."""

    step: int
    future: Future[StepResult]
    submitted: float
    results: dict[int, StepResult | None]
    """By lane, in lane order; None: not yet."""
    running: set[int]
    """Ranks that have not answered; only membership and size are used."""
    report_load: bool = False
    """The result waits for every rank, not only for those that sample."""
    loads: list[LayerLoad] = field(default_factory=list)


class ProcessExecutor:
    """An `Executor` whose ranks are processes. Make it with `start`."""

    def __init__(self, options: EngineOptions, layout: Layout) -> None:
        self.layout = layout
        self._options = options
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tickets: dict[int, _Ticket] = {}
        self._next = 0
        self._dead: str | None = None
        self._kind: str | None = None
        self._closed = False
        self._loaded: dict[int, Loaded] = {}
        self._ready: dict[int, None] = {}
        self._reports: dict[int, Reported] = {}
        self._tallies = [_Tally() for _ in range(layout.world)]
        self._names = [layout.describe(rank) for rank in range(layout.world)]
        self._lanes = [
            [rank for rank in range(layout.world) if layout.coordinates(rank).dp == lane]
            for lane in range(layout.dp)
        ]
        self._store: Store | None = None
        self._budget: KvBudget | None = None
        self._processes: RankProcesses | None = None

    @classmethod
    def start(
        cls,
        options: EngineOptions,
        model_path: Path,
        *,
        cores: int,
        worker: str | None = None,
    ) -> Self:
        """Start and load all ranks; they are ready for steps when this returns.

        The least that any rank can have decides how much KV memory all get. `cores` are shared out among the ranks.
        Raises OutOfMemory or EngineError with the failing rank's own words; then, as after Ctrl-C, nothing is left.
        """
        executor = cls(options, options.layout)
        try:
            executor._launch(model_path, cores, worker or WORKER)
            executor._load()
        except BaseException:
            executor.close()
            raise
        return executor

    @property
    def max_in_flight(self) -> int:
        return self.layout.pp

    @property
    def budget(self) -> KvBudget:
        """What every rank was given."""
        if self._budget is None:
            raise EngineError("the ranks have not been loaded")
        return self._budget

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes by rank."""
        return self._processes.pids if self._processes is not None else ()

    # Start-up

    def _launch(self, model_path: Path, cores: int, worker: str) -> None:
        with RankLauncher(self._options, self.layout, model_path, cores=cores, worker=worker) as launches:
            self._store = launches.store
            self._processes = RankProcesses(
                launches.ranks, launches.board, self._on_message, self._on_failure, self._overdue
            )
            self._processes.start()

    def _load(self) -> None:
        """Wait for the weights, settle the KV memory, wait for it."""
        self._wait(lambda: len(self._loaded) == self.layout.world, "load")
        blocks = min(loaded.num_blocks for loaded in self._loaded.values())
        capacity = (blocks - 1) * self._options.block_size * self.layout.cp
        length = min(loaded.max_model_len for loaded in self._loaded.values())
        self._budget = KvBudget(blocks, min(length, capacity))
        self._broadcast(frame(Allocate(blocks)))
        self._wait(lambda: len(self._ready) == self.layout.world, "allocate KV memory")
        assert self._processes is not None
        self._processes.serving = True

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LOADING_SECONDS
        with self._changed:
            while not done():
                if self._dead is not None:
                    raise OutOfMemory(self._dead) if self._kind in _OUT_OF_MEMORY else EngineError(self._dead)
                if time.monotonic() > deadline:
                    raise EngineError(f"ranks did not {what} within {LOADING_SECONDS:g} s")
                # Short waits, so that Ctrl-C is not kept waiting where a lock cannot be interrupted.
                self._changed.wait(_POLL_SECONDS)

    # Steps

    def submit(self, command: StepCommand) -> Future[StepResult]:
        """Send a step to the ranks. The future fails with EngineDead, naming the rank, when one cannot go on."""
        future: Future[StepResult] = Future()
        parts = self._parts(command)
        with self._lock:
            if self._dead is not None or self._closed or self._processes is None:
                future.set_exception(EngineDead(self._dead or "the ranks have been stopped"))
                return future
            number = self._next
            self._next += 1
            ranks = {rank for lane, _ in parts for rank in self._lanes[lane]}
            self._tickets[number] = _Ticket(
                command.plan.step,
                future,
                time.monotonic(),
                dict.fromkeys(lane for lane, _ in parts),
                ranks,
                command.report_load,
            )
        try:
            for lane, part in parts:
                data = frame(Execute(number, part))
                for rank in self._lanes[lane]:
                    self._processes.send(rank, data)
        except LinkClosed:
            # The watching thread sees the same and knows the rank and the reason; the future is its to fail.
            pass
        return future

    def _parts(self, command: StepCommand) -> list[tuple[int, StepCommand]]:
        """The lanes that have to take part, each with its share of the command."""
        plans = command.plan.lanes or (command.plan,)
        if len(plans) != self.layout.dp:
            raise ValueError(f"a plan for {len(plans)} lanes; this replica has {self.layout.dp}")
        parts: list[tuple[int, StepCommand]] = []
        for lane, plan in enumerate(plans):
            if plan.sequences or plan.finished or self.layout.lock_step:
                ids = {entry.sequence_id for entry in plan.sequences}
                admissions = command.admissions
                if len(plans) > 1:
                    admissions = tuple(a for a in command.admissions if a.sequence_id in ids)
                parts.append((lane, msgspec.structs.replace(command, plan=plan, admissions=admissions)))
        return parts

    def _broadcast(self, data: bytes) -> None:
        assert self._processes is not None
        for rank in range(self.layout.world):
            try:
                self._processes.send(rank, data)
            except LinkClosed:
                return  # told by the watching thread

    # From the watching thread

    def _on_message(self, rank: int, message: FromRank) -> None:
        with self._changed:
            match message:
                case Done():
                    self._on_done(rank, message)
                case Loaded():
                    self._loaded[rank] = message
                case Ready():
                    self._ready[rank] = None
                case Reported():
                    self._reports[rank] = message
                case _:
                    return
            self._changed.notify_all()

    def _on_done(self, rank: int, done: Done) -> None:
        tally = self._tallies[rank]
        tally.steps += 1
        tally.seconds += done.seconds
        tally.waited += done.waited
        ticket = self._tickets.get(done.ticket)
        if ticket is None:  # closed meanwhile
            return
        ticket.running.discard(rank)
        ticket.loads.extend(done.expert_loads)
        if done.result is not None:
            ticket.results[self.layout.coordinates(rank).dp] = done.result
        results = [result for result in ticket.results.values() if result is not None]
        complete = len(results) == len(ticket.results) and not (ticket.report_load and ticket.running)
        if complete and not ticket.future.done():
            ticket.future.set_result(_merged(ticket.step, results, ticket.loads))
        if not ticket.running:
            del self._tickets[done.ticket]

    def _overdue(self, now: float) -> int | None:
        """A rank that has had a step for longer than a step may take, the pipeline's first."""
        with self._lock:
            limit = self._options.step_timeout * _STEP_SHARE
            late = [min(t.running) for t in self._tickets.values() if t.running and now - t.submitted > limit]
        return late[0] if late else None

    def _on_failure(self, failure: Failure) -> None:
        reason = failure.reason
        with self._changed:
            self._dead, self._kind = reason, failure.kind
            waiting = [ticket.future for ticket in self._tickets.values() if not ticket.future.done()]
            self._tickets.clear()
            self._changed.notify_all()
        for future in waiting:
            future.set_exception(EngineDead(reason))

    # What it knows

    def rank_stats(self) -> tuple[RankStats, ...]:
        """Step times by rank."""
        with self._lock:
            return tuple(
                RankStats(rank, self._names[rank], t.steps, t.seconds, t.waited)
                for rank, t in enumerate(self._tallies)
            )

    def reports(self, timeout: float = 10.0) -> tuple[Reported, ...]:
        """Every rank's traffic counters and live sequences. Waits for the steps under way."""
        with self._changed:
            self._reports.clear()
        self._broadcast(frame(Report()))
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(self._reports) < self.layout.world:
                if self._dead is not None:
                    raise EngineDead(self._dead)
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    missing = [self._names[r] for r in range(self.layout.world) if r not in self._reports]
                    raise EngineError(f"no report within {timeout:g} s from {', '.join(missing)}")
            return tuple(self._reports[rank] for rank in range(self.layout.world))

    def traffic(self) -> tuple[tuple[Volume, ...], ...]:
        """What each rank has sent so far, by axis and operation."""
        return tuple(report.traffic for report in self.reports())

    def close(self) -> None:
        """End the ranks; steps under way fail. Idempotent."""
        with self._lock:
            self._closed = True
            waiting = [ticket.future for ticket in self._tickets.values() if not ticket.future.done()]
            self._tickets.clear()
        for future in waiting:
            future.set_exception(EngineDead("the ranks have been stopped"))
        if self._processes is not None:
            self._processes.close()
        self._store = None


def _merged(step: int, results: Sequence[StepResult], loads: Sequence[LayerLoad]) -> StepResult:
    sequences = results[0].sequences
    if len(results) > 1:
        sequences = tuple(entry for result in results for entry in result.sequences)
    return StepResult(step, sequences, add_loads(loads))
