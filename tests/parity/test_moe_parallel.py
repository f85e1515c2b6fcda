"""Mixtures of experts over rank processes answer as one rank does, token for token; experts move while serving.

One engine a model and layout serves all checks. A representative few run every time, the whole matrix is `slow`.
Bugs of other engines (numbers of the engine bug list) covered here: 19 (abort with plans in flight), 23 (an idle
data-parallel rank skips the expert collective).
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from parity.enginekit import assert_greedy, greedy, prompts_for, save_engine_checkpoint
from parity.parallelkit import GREEDY, NEW, RANDOM, Drive, Expected, assert_logprobs, expected, label, starting
from parity.tiny import MIXTURES
from shoal import LLM
from shoal.engine.errors import InvalidOption
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.specs.errors import SpecError

BY_NAME = {tiny.name: tiny for tiny in MIXTURES}


def layouts() -> list[dict[str, int]]:
    """Every product of the axes that makes two to four ranks, and experts cut over two of four."""
    found: list[dict[str, int]] = [{"ep": 2}, {"ep": 4}, {"pp": 2, "ep": 2}]
    for tp, pp, cp, dp, ep in product((1, 2, 3), (1, 2, 3), (1, 2), (1, 2), (1, 2, 4)):
        alone = dp == ep > 1 and tp == cp == 1  # written as `ep` above
        if 2 <= tp * pp * cp * dp <= 4 and tp * cp * dp % ep == 0 and not alone:
            degrees = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep}
            found.append({axis: degree for axis, degree in degrees.items() if degree > 1})
    return [*found, {"tp": 4, "ep": 2}]


QUICK = (
    ("mixtral", {"ep": 2}),
    ("deepseek-v3", {"tp": 2, "ep": 2}),
    ("gpt-oss", {"pp": 2, "ep": 2}),
)
CASES = [pytest.param(case, id=label(*case)) for case in QUICK] + [
    pytest.param((model, layout), id=label(model, layout), marks=pytest.mark.slow)
    for model in ("mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v2", "deepseek-v3", "gpt-oss")
    for layout in layouts()
    if (model, layout) not in QUICK
]
pytestmark = pytest.mark.timeout(600)
SMALL: dict[str, Any] = {"threads": 1, "block_size": 4, "prefill_chunk": 17, "rank_timeout": 60.0}


def lanes(layout: dict[str, int]) -> int:
    alone = layout.get("ep", 1) > 1 and not {"tp", "cp", "dp"} & layout.keys()
    return layout["ep"] if alone else layout.get("dp", 1)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    """What one rank answers, by model; each is asked once."""
    return cache(lambda model: expected(BY_NAME[model], tmp_path_factory.mktemp(model)))


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, right: Callable[[str], Expected]) -> Iterator[tuple[LLM, Expected]]:
    """44 blocks of about four tokens over all lanes: some ten requests don't fit."""
    model, layout = request.param
    answers = right(model)
    sizes = {"num_blocks": 1 + 44 // min(2, lanes(layout)), "block_size": 4 // layout.get("cp", 1)}
    with starting(request.param in QUICK):
        llm = LLM(str(answers.path), **{**SMALL, **sizes}, max_num_batched_tokens=40, **layout)
    with llm:
        yield llm, answers
        llm.check()


def test_crowded_and_chunked_requests_answer_as_on_one_rank(case: tuple[LLM, Expected]) -> None:
    llm, answers = case
    before = llm.stats().preemptions
    assert greedy(llm, answers.prompts, NEW) == answers.greedy
    assert llm.stats().preemptions > before
    llm.check()


def test_draws_are_those_of_one_rank(case: tuple[LLM, Expected]) -> None:
    llm, answers = case
    results = llm.generate(answers.prompts[:6], RANDOM, use_tqdm=False)
    assert [result.outputs[0].token_ids for result in results] == answers.random


def test_log_probabilities_are_those_of_transformers(case: tuple[LLM, Expected]) -> None:
    assert_logprobs(*case)


def test_bug_23_a_lone_request_is_served_while_other_lanes_are_idle(case: tuple[LLM, Expected]) -> None:
    llm, answers = case
    for index in (1, 11):
        assert greedy(llm, [answers.prompts[index]], NEW) == [answers.greedy[index]]


def test_a_cached_prefix_does_not_change_the_answer(case: tuple[LLM, Expected]) -> None:
    llm, answers = case
    greedy(llm, [answers.prompts[0]], NEW)
    before = llm.stats().prefix_hit_tokens
    assert greedy(llm, [answers.prompts[0]], NEW) == [answers.greedy[0]]
    assert llm.stats().prefix_hit_tokens > before


def test_bug_19_aborts_leave_the_others_right(case: tuple[LLM, Expected]) -> None:
    llm, answers = case

    def abort(_: Drive, step: int) -> None:
        if step in (2, 5, 9):
            llm._core.abort(str(step))

    drive = Drive(llm)
    drive.run(answers.prompts, GREEDY, abort)
    for index, answer in enumerate(answers.greedy):
        if drive.endings[str(index)] == "abort":
            assert index in (2, 5, 9)
            assert drive.tokens[str(index)] == answer[: len(drive.tokens[str(index)])]
        else:
            assert drive.tokens[str(index)] == answer
    assert "abort" in drive.endings.values()
    llm.check()


@pytest.mark.parametrize(
    ("model", "layout", "ways"),
    [
        ("deepseek-v3", {"ep": 2}, ("off", "on")),
        pytest.param("deepseek-v3", {"ep": 2}, ("auto",), marks=pytest.mark.slow),
        pytest.param("gpt-oss", {"tp": 2, "ep": 2}, ("off", "on"), marks=pytest.mark.slow),
        pytest.param("qwen3-moe", {"dp": 2, "tp": 2, "ep": 2}, ("on", "auto"), marks=pytest.mark.slow),
        pytest.param("mixtral", {"tp": 2, "pp": 2, "ep": 2}, ("on", "auto"), marks=pytest.mark.slow),
        pytest.param("deepseek-v2", {"cp": 2, "ep": 2}, ("on",), marks=pytest.mark.slow),
    ],
)
def test_rows_that_travel_while_others_are_computed_change_no_token(
    right: Callable[[str], Expected], model: str, layout: dict[str, int], ways: tuple[str, ...]
) -> None:
    """Over Gloo, which carries them in a thread of its own; every step in halves, and as start-up has measured."""
    answers = right(model)
    options = {**SMALL, **layout, "num_blocks": 200, "max_num_batched_tokens": 40, "collectives": "gloo"}
    messages: dict[str, int] = {}
    for overlap in ways:
        with LLM(str(answers.path), **options, overlap=overlap) as llm:
            assert greedy(llm, answers.prompts, NEW) == answers.greedy
            assert isinstance(llm._core._executor, ProcessExecutor)
            volumes = [v for rank in llm._core._executor.traffic() for v in rank if v.axis == "ep"]
            messages[overlap] = sum(v.messages for v in volumes if v.operation == "all_to_all")
    if ways == ("off", "on"):
        assert messages["on"] == 2 * messages["off"]


def skew(directory: Path) -> Any:
    """Make every row choose experts 0 and 1, both of the first rank; returns Transformers' model of it."""
    file = directory / "model.safetensors"
    weights = load_file(file)
    for name, tensor in weights.items():
        if name.endswith("e_score_correction_bias"):
            tensor[:2] += 3.0
    save_file(weights, file, {"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").float().eval()


@pytest.mark.parametrize("layout", [{"ep": 2}, pytest.param({"tp": 2, "pp": 2, "ep": 2}, marks=pytest.mark.slow)])
def test_hot_experts_are_replicated_while_serving_and_no_token_changes(
    tmp_path: Path, layout: dict[str, int]
) -> None:
    """The busiest rank's measured share of the rows, before and after; Transformers agrees with every token."""
    tiny = BY_NAME["deepseek-v3"]
    save_engine_checkpoint(tiny, tmp_path)
    model = skew(tmp_path)
    prompts = prompts_for(tiny, 12, NEW)
    options = {**SMALL, **layout, "num_blocks": 200, "max_num_batched_tokens": 32}
    with LLM(str(tmp_path), **options, spare_experts=1, balance_steps=3) as llm:
        balancer = llm._core.balancer
        assert balancer is not None
        measured: list[tuple[float, ...]] = []

        def watch(_: Drive, step: int) -> None:
            if not measured or measured[-1] != balancer.imbalance:
                measured.append(balancer.imbalance)

        drive = Drive(llm)
        drive.run(prompts, GREEDY, watch)
        first = next(window for window in measured if window)
        assert balancer.moves >= len(first), "each layer has moved"
        assert min(first) > 1.4
        assert max(measured[2]) < 1.25
        again = greedy(llm, prompts, NEW)
    for index, prompt in enumerate(prompts):
        assert_greedy(model, prompt, drive.tokens[str(index)])
        assert again[index] == drive.tokens[str(index)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance_steps": 3}, "balance_steps"),
        ({"ep": 2, "balance_steps": 0}, "balance_steps"),
        ({"spare_experts": 1}, "spare_experts"),
        ({"ep": 2, "spare_experts": -1}, "spare_experts"),
        ({"ep": 2, "overlap": "maybe"}, "overlap"),
    ],
)
def test_options_without_a_meaning_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        LLM(str(tmp_path), **options)


def test_more_ranks_than_experts_are_refused(right: Callable[[str], Expected]) -> None:
    with pytest.raises(SpecError, match="ep=6 leaves a rank without one of 5 experts"):
        LLM(str(right("mixtral").path), threads=1, ep=6)
