"""Workers that rank processes of tests run: collectives over every axis instead of a model, or a faulty model."""

import os
import time
from dataclasses import dataclass

import torch
from rank_hollow import Faulty, suffer_while_loading

from shoal.engine.kv.budget import KvBudget
from shoal.engine.messages import StepCommand
from shoal.engine.parallel.group import Group
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.ranks.link import Setup
from shoal.engine.ranks.rank import PreparedRank, RankWorker, load
from shoal.policy.batching.plan import SampledSequence, StepResult

SLOW_STAGE = "SHOAL_TEST_SLOW_STAGE"
"""Environment: seconds that the first pipeline stage takes for a sequence."""


def checksum(mesh: Mesh, tokens: tuple[int, ...], step: int) -> int:
    """What only ranks that all took part, in this step, with this command, arrive at."""
    if mesh.first_stage:
        time.sleep(float(os.environ.get(SLOW_STAGE, "0")))
    value = torch.tensor([sum(tokens) + step, mesh.rank], dtype=torch.int64)
    if mesh.at.pp > 0:
        value += mesh.pp.recv((2,), torch.int64, mesh.at.pp - 1)
    value = mesh.tp.all_reduce(value)
    value = mesh.cp.all_reduce(value)
    if not mesh.last_stage:
        mesh.pp.send(value, mesh.at.pp + 1)
    return int(value[0]) * 1000 + int(value[1])


def expected_checksum(mesh_sizes: tuple[int, int, int], first_rank: int, tokens: tuple[int, ...], step: int) -> int:
    """The same, worked out without any rank. `mesh_sizes`: pp, cp, tp; `first_rank`: of the lane."""
    pp, cp, tp = mesh_sizes
    own, ranks = [0] * (cp * tp), [0] * (cp * tp)
    for stage in range(pp):
        base = first_rank + stage * cp * tp
        own = [value + sum(tokens) + step for value in own]
        ranks = [value + base + place for place, value in enumerate(ranks)]
        own, ranks = [sum(own)] * (cp * tp), [sum(ranks)] * (cp * tp)
    return own[0] * 1000 + ranks[0]


@dataclass(slots=True)
class CollectiveProbe:
    """Samples the checksum for every sequence."""

    mesh: Mesh
    live_sequences: int = 0

    def execute(self, command: StepCommand) -> StepResult:
        answers = [
            SampledSequence(s.sequence_id, (checksum(self.mesh, s.tokens, command.plan.step),))
            for s in command.plan.sequences
        ]
        return StepResult(command.plan.step, tuple(answers))

    def close(self) -> None:
        return None


@dataclass(slots=True)
class ProbeRank:
    mesh: Mesh

    @property
    def budget(self) -> KvBudget:
        # Ranks differ, so that a test sees who decides.
        return KvBudget(100 - 10 * self.mesh.rank, 1000 + self.mesh.rank)

    def worker(self, num_blocks: int) -> RankWorker:
        return Faulty(CollectiveProbe(self.mesh), self.mesh.rank)


@dataclass(slots=True)
class OperationsProbe:
    """Checks every operation of the tp group against what it means; the token 1 says that all were right."""

    mesh: Mesh
    live_sequences: int = 0

    @property
    def budget(self) -> KvBudget:
        return KvBudget(10, 100)

    def worker(self, num_blocks: int) -> RankWorker:
        return self

    def execute(self, command: StepCommand) -> StepResult:
        check_operations(self.mesh.tp)
        return StepResult(command.plan.step, (SampledSequence(1, (1,)),))

    def close(self) -> None:
        return None


def check_operations(group: Group) -> None:
    """Raises AssertionError for the first operation that yields something else than it should."""
    n, me = group.size, group.index
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        parts = [_values(rank, dtype) for rank in range(n)]
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        total = parts[0].to(wide)
        for part in parts[1:]:
            total = total + part.to(wide)
        assert torch.equal(group.all_reduce(parts[me].clone()), total.to(dtype)), f"all_reduce {dtype}"
        for dim in (0, 1):
            extents = [2, 0, 5][:n]
            shares = [_values(rank, dtype).narrow(dim, 0, extents[rank]) for rank in range(n)]
            assert torch.equal(group.all_gather(shares[me], dim, extents), torch.cat(shares, dim)), "all_gather"
        rows = [[(source + 2 * target) % 4 for target in range(n)] for source in range(n)]
        got = group.all_to_all([_values(10 * me + target, dtype)[: rows[me][target]] for target in range(n)])
        for source in range(n):
            assert torch.equal(got[source], _values(10 * source + me, dtype)[: rows[source][me]]), "all_to_all"
        pending = [
            group.start_all_to_all(
                [_values(10 * me + target + wave, dtype)[: rows[me][target]] for target in range(n)],
                [rows[source][me] for source in range(n)],
            )
            for wave in range(2)
        ]
        for wave, work in enumerate(pending):
            for source, tensor in enumerate(work.wait()):
                sent = _values(10 * source + me + wave, dtype)[: rows[source][me]]
                assert torch.equal(tensor, sent), "start_all_to_all"
        if me == 0:
            group.send(_values(5, dtype), n - 1)
        elif me == n - 1:
            assert torch.equal(group.recv((6, 7), dtype, 0), _values(5, dtype)), "recv"
        group.barrier()


def _values(seed: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(6, 7, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype)


def operations(setup: Setup, mesh: Mesh) -> PreparedRank:
    """module:function of the check of operations."""
    return OperationsProbe(mesh)


@dataclass(slots=True)
class _FaultyRank:
    inner: PreparedRank
    rank: int

    @property
    def budget(self) -> KvBudget:
        return self.inner.budget

    def worker(self, num_blocks: int) -> RankWorker:
        return Faulty(self.inner.worker(num_blocks), self.rank)


def probe(setup: Setup, mesh: Mesh) -> PreparedRank:
    """module:function of the probe."""
    suffer_while_loading(setup)
    return ProbeRank(mesh)


def real(setup: Setup, mesh: Mesh) -> PreparedRank:
    """module:function of the real worker, with faults."""
    suffer_while_loading(setup)
    return _FaultyRank(load(setup, mesh), setup.rank)
