"""A worker that does nothing but fail on order. Free of torch, so that its ranks start at once."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from shoal.engine.messages import StepCommand
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.ranks.link import Setup
from shoal.engine.ranks.rank import RankWorker
from shoal.policy.batching.plan import SampledSequence, StepResult

FAULT = "SHOAL_TEST_FAULT"
"""Environment: `kind rank step`, e.g. `kill 1 3`. Kinds: see `suffer`; with `load-` before them they strike while
the rank loads, whatever the step."""


@dataclass(frozen=True, slots=True)
class Budget:
    """As `KvBudget`, which cannot be had without torch."""

    num_blocks: int = 10
    max_model_len: int = 100


@dataclass(slots=True)
class Hollow:
    """Answers every sequence with its first token."""

    live_sequences: int = 0

    def execute(self, command: StepCommand) -> StepResult:
        answers = tuple(SampledSequence(s.sequence_id, s.tokens[:1]) for s in command.plan.sequences)
        return StepResult(command.plan.step, answers)

    def close(self) -> None:
        return None


@dataclass(slots=True)
class HollowRank:
    rank: int
    budget: Budget

    def worker(self, num_blocks: int) -> RankWorker:
        return Faulty(Hollow(), self.rank)


def hollow(setup: Setup, mesh: Mesh) -> HollowRank:
    """module:function of it."""
    suffer_while_loading(setup)
    return HollowRank(setup.rank, Budget())


@dataclass(slots=True)
class Faulty:
    """A worker that fails as the environment orders, at the n-th step it executes."""

    inner: RankWorker
    rank: int
    steps: int = 0

    @property
    def live_sequences(self) -> int:
        return self.inner.live_sequences

    def execute(self, command: StepCommand) -> StepResult:
        kind, rank, step = os.environ.get(FAULT, "none 0 0").split()
        if int(rank) == self.rank and self.steps >= int(step):
            suffer(kind)
        self.steps += 1
        return self.inner.execute(command)

    def close(self) -> None:
        self.inner.close()


def suffer(kind: str) -> None:
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(3600)
        case "raise":
            raise RuntimeError("the coffee machine is empty")
        case "memory":
            raise MemoryError("no room for 12 bytes")
        case "exit":
            os._exit(7)
        case "none":
            return
        case _:
            raise AssertionError(kind)


def suffer_while_loading(setup: Setup) -> None:
    kind, rank, _ = os.environ.get(FAULT, "none 0 0").split()
    if kind.startswith("load-") and int(rank) == setup.rank:
        suffer(kind.removeprefix("load-"))
