"""Rank processes that work: every layout computes what it should, in order, counted and measured."""

import signal

import pytest
import torch.distributed
from rank_kit import command, entry, gone, ranks
from rank_workers import expected_checksum

from shoal.engine.errors import EngineDead, EngineError
from shoal.engine.messages import Admission, StepCommand
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.policy.batching.plan import StepPlan


@pytest.fixture(scope="session", autouse=True)
def _event_loop_of_the_store() -> None:
    """PyTorch's store opens its event loop's signal pipe at the first use and keeps it: not the test's."""
    torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize(
    ("pp", "cp", "tp", "collectives"),
    [(2, 1, 2, "shm"), (2, 1, 1, "gloo"), pytest.param(1, 2, 2, "shm", marks=pytest.mark.slow)],
)
def test_a_step_reaches_every_rank_and_its_result_comes_from_the_one_that_samples(
    monkeypatch: pytest.MonkeyPatch, pp: int, cp: int, tp: int, collectives: str
) -> None:
    with ranks(monkeypatch, pp=pp, cp=cp, tp=tp, collectives=collectives) as executor:
        assert executor.max_in_flight == pp
        futures = []
        for step in range(6):
            futures.append(executor.submit(command(step, entry(7, step, 5), entry(9, 1))))
            if len(futures) >= pp:
                oldest = len(futures) - pp
                futures[oldest].result(30)
        for step, future in enumerate(futures):
            result = future.result(30)
            assert result.step == step
            assert [(s.sequence_id, s.tokens) for s in result.sequences] == [
                (7, (expected_checksum((pp, cp, tp), 0, (step, 5), step),)),
                (9, (expected_checksum((pp, cp, tp), 0, (1,), step),)),
            ]
        traffic = executor.traffic()
        stats = executor.rank_stats()
        assert [s.steps for s in stats] == [6] * executor.layout.world
        assert all(s.seconds >= s.waited >= 0 for s in stats)
    for rank, volumes in enumerate(traffic):
        counted = {(v.axis, v.operation): (v.messages, v.bytes) for v in volumes}
        hands_over = executor.layout.coordinates(rank).pp < pp - 1
        expected = {}
        if tp > 1:
            expected["tp", "all_reduce"] = (12, 12 * 16)
        if cp > 1:
            expected["cp", "all_reduce"] = (12, 12 * 16)
        if hands_over:
            expected["pp", "send"] = (12, 12 * 16)
        assert counted == expected
    assert gone(executor.pids)


def test_lanes_compute_their_own_plans_and_idle_lanes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(monkeypatch, dp=2) as executor:
        first = StepPlan(0, 0, (entry(1, 3),))
        second = StepPlan(0, 0, (entry(2, 4),))
        both = StepPlan(5, 0, first.sequences + second.sequences, lanes=(first, second))
        answers = executor.submit(StepCommand(both)).result(30)
        assert [(s.sequence_id, s.tokens[0]) for s in answers.sequences] == [
            (1, expected_checksum((1, 1, 1), 0, (3,), 0)),
            (2, expected_checksum((1, 1, 1), 1, (4,), 0)),
        ]
        alone = StepPlan(6, 0, second.sequences, lanes=(StepPlan(6, 0, ()), second))
        answers = executor.submit(StepCommand(alone)).result(30)
        assert (answers.step, [s.sequence_id for s in answers.sequences]) == (6, [2])
        assert [s.steps for s in executor.rank_stats()] == [1, 2]
        with pytest.raises(ValueError, match="a plan for 1 lanes; this replica has 2"):
            executor.submit(command(0, entry(1, 1)))


def test_lanes_that_share_experts_step_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(monkeypatch, ep=2) as executor:
        plan = StepPlan(0, 0, (entry(2, 4),))
        wave = StepPlan(0, 0, plan.sequences, lanes=(StepPlan(0, 0, ()), plan))
        answers = executor.submit(StepCommand(wave)).result(30)
        assert [s.sequence_id for s in answers.sequences] == [2]
        executor.reports()  # answered after the steps before it
        assert [s.steps for s in executor.rank_stats()] == [1, 1]


def test_bug_22_the_least_rank_decides_commands_cross_whole_and_nothing_is_accepted_after_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = SamplingParams(
        logit_bias={5: -2.5}, stop=("a", "ü"), guided=GuidedParams("regex", "a+"), seed=2**63, logprobs=3
    )
    admission = Admission(1, params, tuple(range(5000)), (1, 2))
    with ranks(monkeypatch, tp=2) as executor:
        assert (executor.budget.num_blocks, executor.budget.max_model_len) == (90, 1000)
        plan = StepPlan(0, 0, (entry(1, *range(5000)),), copies=((1, 2),), finished=(4,))
        answer = executor.submit(StepCommand(plan, (admission,))).result(30)
        assert answer.sequences[0].tokens == (expected_checksum((1, 1, 2), 0, tuple(range(5000)), 0),)
        executor.close()
        with pytest.raises(EngineDead, match="stopped"):
            executor.submit(command(0, entry(1, 1))).result(1)
        executor.close()
    assert gone(executor.pids)


@pytest.mark.parametrize("collectives", ["gloo", pytest.param("shm", marks=pytest.mark.slow)])
def test_every_collective_means_the_same_over_every_backend(
    monkeypatch: pytest.MonkeyPatch, collectives: str
) -> None:
    with ranks(monkeypatch, worker="rank_workers:operations", tp=3, collectives=collectives) as executor:
        assert executor.submit(command(0, entry(1, 1))).result(30).sequences[0].tokens == (1,)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("load-raise 1 0", r"rank 1 \(tp 1 of 2\) failed: RuntimeError: the coffee machine is empty"),
        ("load-kill 0 0", rf"rank 0 \(tp 0 of 2\) was killed by signal {int(signal.SIGKILL)}"),
        ("load-memory 1 0", r"rank 1 \(tp 1 of 2\) failed: out of memory: no room for 12 bytes"),
        ("load-exit 1 0", r"rank 1 \(tp 1 of 2\) ended with exit code 7"),
    ],
)
def test_a_rank_that_fails_to_load_is_named(monkeypatch: pytest.MonkeyPatch, fault: str, message: str) -> None:
    with pytest.raises(EngineError, match=message), ranks(monkeypatch, fault, "rank_hollow:hollow", tp=2):
        raise AssertionError("it started")
