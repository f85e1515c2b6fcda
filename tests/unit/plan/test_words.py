"""Issue 14, fault 11: every sentence of an explanation agrees with the numbers beside it."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shoal.plan.api import ask
from shoal.plan.cost import too_close
from shoal.plan.designs import Design, Plan
from shoal.plan.explain import Explanation, explain, split_against
from shoal.plan.search import search

QUESTIONS: dict[str, dict[str, object]] = {
    "small": {"model": "llama-3.1-8b", "gpu": ["l40s"], "users": 1},
    "replicas": {"model": "llama-3.1-8b", "gpu": ["l4", "l40s"], "users": 60, "input_tokens": 2000},
    "tensor": {"model": "llama-3.1-70b", "gpu": ["h100"], "users": 40, "spares": 1},
    "split": {"model": "llama-3.1-70b", "gpu": ["h100"], "users": 46, "max_devices": 4},
    "only split": {"model": "llama-3.1-70b", "gpu": ["h100"], "users": 60, "split": "only"},
    "experts": {"model": "qwen3-30b-a3b", "gpu": ["h100"], "users": 200, "prefix_hit": 0.5},
    "strict": {"model": "llama-3.1-70b", "gpu": ["h100", "h200"], "users": 100, "ttft": 2.0, "percentile": 95.0},
    "no targets": {"model": "llama-3.1-8b", "gpu": ["l40s"], "users": 500, "ttft": None, "tpot": None},
}
NUMBER = r"([\d,]+(?:\.\d+)?)"


@pytest.fixture(scope="module", params=QUESTIONS)
def answer(request: pytest.FixtureRequest) -> tuple[Plan, Explanation]:
    asked = dict(QUESTIONS[request.param])
    plan = search(ask(str(asked.pop("model")), **asked))  # type: ignore[arg-type]
    return plan, explain(plan, sensitivity=request.param in ("replicas", "tensor"))


def value(text: str) -> float:
    return float(text.replace(",", ""))


def found(pattern: str, lines: list[str]) -> Iterator[list[float]]:
    for line in lines:
        for match in re.finditer(pattern, line):
            yield [value(group) for group in match.groups()]


def claims(plan: Plan, explanation: Explanation) -> int:
    """Check every sentence that compares numbers; return how many were checked."""
    lines, best = [*explanation.lines()], plan.best
    if best is None:
        assert explanation.summary == (plan.impossible.message if plan.impossible else "",)
        return 1
    count = 0
    for mine, other in found(rf"split pays here: {NUMBER} devices? against {NUMBER} with one pool", lines):
        count += 1
        assert mine == best.devices
        single = next(d for d in plan.designs if not d.split)
        assert other == single.devices
        assert _price(best) < _price(single)
    for takes, has in found(rf"A replica takes {NUMBER} requests? at once.*at the peak it has {NUMBER}", lines):
        count += 1
        assert not best.split
        assert has <= takes
    for has, holds in found(rf"a decode worker has {NUMBER} requests?; its KV memory holds {NUMBER}", lines):
        count += 1
        assert has >= best.load
        assert holds == best.memory_batch
    for alone, rest in found(
        rf"cache alone would take {NUMBER} devices? with a fifth kept free; the other {NUMBER}", lines
    ):
        count += 1
        assert alone + rest == best.devices
        assert rest > 0
    for (devices,) in found(rf"^Serve .* on {NUMBER} devices", lines):
        count += 1
        assert devices == best.devices
    for user, whole, device in found(
        rf"{NUMBER} tokens a second for each user, {NUMBER} in all \({NUMBER} a device", lines
    ):
        count += 1
        assert user == pytest.approx(best.per_user, abs=0.51)
        assert whole == pytest.approx(device * best.devices, rel=0.02, abs=best.devices)
    for line in lines:
        shares = [value(share) for share in re.findall(r"(\d+)%(?=[,.] | \d|$|,)", line)]
        if line.lstrip().startswith(("A token's", "A prompt's")):
            count += 1
            assert sum(shares) <= 101
    count += _ladder(plan, best, explanation)
    for effect in explanation.levers:
        count += 1
        numbers = re.search(rf": {NUMBER} devices? instead of {NUMBER}", effect.sentence)
        assert numbers is not None
        assert value(numbers[1]) == effect.design.devices
        assert value(numbers[2]) == best.devices
        assert effect.share < 1
    return count


def _ladder(plan: Plan, best: Design, explanation: Explanation) -> int:
    count = 0
    for rung in explanation.ladder:
        rivals = [d for d in plan.designs if d.rung == rung.number and d.accelerator.name == best.accelerator.name]
        if "design chosen is smaller" in rung.reason:
            count += 1
            assert all(not d.cost or d.devices > best.devices or d.cost.per_hour > 0 for d in rivals)
            devices = re.match(rf"{NUMBER} device", rung.reason)
            assert devices is not None
            assert value(devices[1]) > best.devices
        if "too close to call" in rung.reason:
            count += 1
            assert any(too_close(best, d) for d in rivals)
        if "more for the same traffic" in rung.reason:
            count += 1
            prices = re.search(r"costs \$([\d.,]+) against \$([\d.,]+)", rung.reason)
            assert prices is not None
            assert value(prices[1]) >= value(prices[2])
        if rung.verdict == "chosen":
            count += 1
            assert rung.number == best.rung
        if rung.verdict == "fails":
            assert not rivals
    return count


def _price(design: Design) -> float:
    return design.cost.per_hour if design.cost is not None else float(design.devices)


def test_every_claim_agrees_with_its_numbers(answer: tuple[Plan, Explanation]) -> None:
    plan, explanation = answer
    assert claims(plan, explanation) >= 3


def test_a_split_that_takes_more_never_pays() -> None:
    """The words were "the split pays: 4 devices against 3"."""
    plan = search(ask("llama-3.1-70b", gpu=["h100"], users=20))
    split = next(d for d in plan.designs if d.split)
    single = next(d for d in plan.designs if not d.split)
    for workers in range(1, 2 * split.devices):
        rival = replace(single, replicas=workers, cost=None)
        line = split_against(replace(split, cost=None), rival)
        assert ("pays" in line) == (split.devices < rival.devices), line
        assert f"against {rival.devices:,} with one pool" in line


def test_the_check_would_catch_the_old_words() -> None:
    plan = search(ask("llama-3.1-70b", gpu=["h100"], users=46, max_devices=4))
    explanation = explain(plan, sensitivity=False)
    assert plan.best is not None
    false = (
        f"The split pays here: {plan.best.devices} devices against {plan.best.devices - 1} with one pool, because."
    )
    with pytest.raises((AssertionError, StopIteration)):
        claims(plan, replace(explanation, splitting=(false,)))
    with pytest.raises(AssertionError):
        claims(plan, replace(explanation, binding=("A replica takes 5 requests at once; at the peak it has 9.",)))
