"""Every layout answers as one rank does, token for token: tensor, pipeline, context parallel, lanes, products.

One engine a model and layout, small enough to be preempted and made to cut prompts into chunks, serves all checks.
A representative few run every time, the whole matrix is `slow`. Bugs of other engines (numbers of the engine bug
list) covered here: 19 (abort with plans in flight), 22 (ranks that diverge).
"""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from parity.enginekit import greedy
from parity.parallelkit import GREEDY, NEW, RANDOM, Drive, Expected, assert_logprobs, expected, label, starting
from parity.tiny import ARCHITECTURES
from shoal import LLM
from shoal.engine.ranks.executor import ProcessExecutor

BY_NAME = {tiny.name: tiny for tiny in ARCHITECTURES}
MODELS = ("llama", "mistral-window", "qwen2", "qwen3", "gemma3")
LAYOUTS: tuple[dict[str, int], ...] = (
    {"tp": 2}, {"tp": 3}, {"pp": 2}, {"pp": 3}, {"cp": 2}, {"dp": 2},
    {"tp": 2, "pp": 2}, {"tp": 2, "cp": 2}, {"tp": 2, "dp": 2}, {"pp": 2, "cp": 2}, {"pp": 2, "dp": 2},
    {"cp": 2, "dp": 2}, {"tp": 4}, {"cp": 3},
)  # fmt: skip
QUICK = (
    ("llama", {"tp": 3}),
    ("gemma3", {"pp": 2}),
    ("mistral-window", {"cp": 2}),
    ("qwen2", {"tp": 2, "pp": 2}),
    ("qwen3", {"dp": 2}),
)


CASES = [pytest.param(case, id=label(*case)) for case in QUICK] + [
    pytest.param((model, layout), id=label(model, layout), marks=pytest.mark.slow)
    for model in MODELS
    for layout in LAYOUTS
    if (model, layout) not in QUICK
]
pytestmark = pytest.mark.timeout(600)


class Case:
    """One model at one layout, with KV memory for some three requests a lane, in blocks of about four tokens."""

    def __init__(self, right: Expected, layout: dict[str, int]) -> None:
        self.expected = right
        striped, lanes = layout.get("cp", 1), layout.get("dp", 1)
        self.llm = LLM(
            str(self.expected.path),
            threads=1,
            num_blocks=1 + 44 // lanes,
            block_size=4 if striped == 1 else 2 if striped == 2 else 1,
            max_num_batched_tokens=40,
            prefill_chunk=17,
            rank_timeout=60.0,
            **layout,
        )

    @property
    def executor(self) -> ProcessExecutor:
        executor = self.llm._core._executor
        assert isinstance(executor, ProcessExecutor)
        return executor


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    """What one rank answers, by model; each is asked once."""
    return cache(lambda model: expected(BY_NAME[model], tmp_path_factory.mktemp(model)))


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, right: Callable[[str], Expected]) -> Iterator[Case]:
    model, layout = request.param
    with starting(request.param in QUICK):
        case = Case(right(model), layout)
    with case.llm as llm:
        yield case
        llm.check()


def test_crowded_and_chunked_requests_answer_as_on_one_rank(case: Case) -> None:
    before = case.llm.stats().preemptions
    assert greedy(case.llm, case.expected.prompts, NEW) == case.expected.greedy
    assert case.llm.stats().preemptions > before
    case.llm.check()


def test_a_cached_prefix_does_not_change_the_answer(case: Case) -> None:
    prompt, answer = case.expected.prompts[0], case.expected.greedy[0]
    greedy(case.llm, [prompt], NEW)
    before = case.llm.stats().prefix_hit_tokens
    assert greedy(case.llm, [prompt], NEW) == [answer]
    assert case.llm.stats().prefix_hit_tokens > before


def test_a_lone_request_is_served_while_other_lanes_are_idle(case: Case) -> None:
    for index in (1, 11):
        assert greedy(case.llm, [case.expected.prompts[index]], NEW) == [case.expected.greedy[index]]


def test_draws_are_those_of_one_rank(case: Case) -> None:
    results = case.llm.generate(case.expected.prompts[:6], RANDOM, use_tqdm=False)
    assert [result.outputs[0].token_ids for result in results] == case.expected.random


def test_log_probabilities_are_those_of_transformers(case: Case) -> None:
    assert_logprobs(case.llm, case.expected)


def test_drafts_do_not_change_the_answer(case: Case) -> None:
    """Proposed where a sequence is ready for them: two right ones and a wrong one, or the wrong one first."""
    right = case.expected.greedy[:6]
    core = case.llm._core
    first = core._next_id

    def propose(drive: Drive, step: int) -> None:
        for index, answer in enumerate(right):
            done = len(drive.tokens[str(index)])
            if done > 0 and done + 4 < NEW:
                ahead = answer[done : done + 2]
                wrong = (answer[done + 2] + 1) % 200
                drafts = (*ahead, wrong) if (step + index) % 2 else (wrong, *ahead)
                core._scheduler.propose(first + index, drafts)

    drive = Drive(case.llm)
    drive.run(case.expected.prompts[:6], GREEDY, propose)
    assert [drive.tokens[str(index)] for index in range(6)] == right
    assert drive.widest == 3, "no draft was accepted"


@pytest.mark.parametrize("seed", range(3))
def test_bug_19_aborts_leave_the_others_right_and_no_rank_behind(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prompts, right = case.expected.prompts, case.expected.greedy
    doomed = torch.randperm(len(prompts), generator=generator)[:6].tolist()
    moments = torch.randint(0, 24, (6,), generator=generator).tolist()

    def abort(_: Drive, step: int) -> None:
        for index, moment in zip(doomed, moments, strict=True):
            if step == moment:
                case.llm._core.abort(str(index))

    drive = Drive(case.llm)
    drive.run(prompts, GREEDY, abort)
    for index, answer in enumerate(right):
        if drive.endings[str(index)] == "abort":
            assert index in doomed
            assert drive.tokens[str(index)] == answer[: len(drive.tokens[str(index)])]
        else:
            assert drive.tokens[str(index)] == answer
    case.llm.check()
    assert "abort" in drive.endings.values()


def test_bug_22_ranks_remember_the_same_sequences(case: Case) -> None:
    """And none but those that ended with the last step: these are dropped when the next one begins."""
    greedy(case.llm, case.expected.prompts[:2], NEW)
    reports = case.executor.reports()
    mesh = case.executor.layout
    for lane in range(mesh.dp):
        held = {reports[rank].live_sequences for rank in range(mesh.world) if mesh.coordinates(rank).dp == lane}
        assert len(held) == 1
        assert held.pop() <= 2
