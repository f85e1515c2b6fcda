"""Issue 14, what planners miss 1 to 3: what devices carry, what a named layout does, the strongest levers."""

import json
from dataclasses import replace

import pytest

from shoal.cli.entry import main
from shoal.plan.api import ask
from shoal.plan.given import comparison, given, parse_layouts
from shoal.plan.inverse import PRECISION, carried, gains, inverse_lines
from shoal.plan.levers import effects, prefix_lines
from shoal.plan.question import Question
from shoal.plan.search import search
from shoal.specs.errors import SpecError

DEVICES = 2


@pytest.fixture(scope="module")
def question() -> Question:
    return ask("llama-3.1-8b", gpu=["l40s"], input_tokens=2048, output_tokens=256, split="never")


def users(question: Question, count: float) -> Question:
    return replace(question, workload=replace(question.workload, users=count, rate=None))


def test_as_many_as_are_carried_can_be_planned_and_no_more(question: Question) -> None:
    found = carried(question, question.accelerators[0], DEVICES)
    assert found.users > 1
    assert found.design is not None
    assert found.design.devices <= DEVICES
    bounded = replace(question, max_devices=DEVICES)
    assert search(users(bounded, found.users)).best is not None
    more = found.users + max(2, int(found.users * PRECISION) + 1)
    assert search(users(bounded, more)).best is None


def test_where_the_search_begins_does_not_matter(question: Question) -> None:
    part = question.accelerators[0]
    numbers = [carried(question, part, DEVICES, start).users for start in (1, 7, 500)]
    assert max(numbers) - min(numbers) <= max(1, int(max(numbers) * PRECISION))


def test_more_devices_and_easier_targets_carry_more(question: Question) -> None:
    found = carried(question, question.accelerators[0], DEVICES)
    changes = gains(question, found)
    assert {gain.change for gain in changes} >= {"twice the devices"}
    assert all(gain.factor >= 1.05 and gain.users > found.users for gain in changes)
    assert [gain.factor for gain in changes] == sorted((gain.factor for gain in changes), reverse=True)
    lines = inverse_lines(found, None, changes)
    assert f"{found.users} users at once" in lines[0]
    doubling = any(gain.factor >= 1.9 for gain in changes)
    assert ("What would double it:" in lines) == doubling


def test_devices_that_hold_nothing_say_why() -> None:
    question = ask("llama-3.1-70b", gpu=["t4"], split="never")
    found = carried(question, question.accelerators[0], 1)
    assert found.users == 0
    assert "not even one user" in inverse_lines(found, None, ())[0]


@pytest.mark.parametrize(
    ("text", "labels", "replicas"),
    [
        ("tp=8", ["tp8"], [None]), ("tp8", ["tp8"], [None]), ("TP=4, PP=2", ["tp4 pp2"], [None]),
        ("tp=4 x2; tp=8", ["tp4", "tp8"], [2, None]), ("2x tp4 vs tp=8 replicas=3", ["tp4", "tp8"], [2, 3]),
    ],
)  # fmt: skip
def test_layouts_as_people_write_them(text: str, labels: list[str], replicas: list[int | None]) -> None:
    found = parse_layouts(text, "layout")
    assert [named.layout.label() for named in found] == labels
    assert [named.replicas for named in found] == replicas


@pytest.mark.parametrize("text", ["", "tp", "tp=0", "xy=4", "tp=4 tp=8", "8"])
def test_layouts_that_are_none_name_the_axes(text: str) -> None:
    with pytest.raises(SpecError, match="tp"):
        parse_layouts(text, "layout")


def test_a_named_layout_side_by_side_with_another(question: Question) -> None:
    asked = users(question, 20)
    one, two, odd = (
        given(asked, asked.accelerators[0], named) for named in parse_layouts("tp=1; tp=2 x1; tp=3", "l")
    )
    assert one.design is not None
    assert one.meets
    assert one.design.layout.tp == 1
    assert two.design is not None
    assert two.design.load == pytest.approx(20)
    assert odd.design is None
    assert odd.reason
    rows = dict(comparison(asked, [one, two, odd]))
    assert rows["design"][1] == "1 × tp2"
    assert rows["targets"][0] == "met"
    assert rows["targets"][2].startswith("cannot run")


def test_a_layout_with_too_few_replicas_says_how_many_would_do(question: Question) -> None:
    asked = users(question, 300)
    enough = given(asked, asked.accelerators[0], parse_layouts("tp=1", "layout")[0])
    assert enough.replicas > 1
    few = given(asked, asked.accelerators[0], parse_layouts(f"tp=1 x{max(1, enough.replicas // 2)}", "layout")[0])
    if few.design is not None:
        assert not few.meets
        assert f"{enough.replicas} replicas would meet them" in dict(comparison(asked, [few]))["targets"][0]


def test_the_three_strongest_levers_are_computed(question: Question) -> None:
    plan = search(users(question, 400))
    assert plan.best is not None
    found = effects(plan)
    assert 1 <= len(found) <= 3
    assert [effect.share for effect in found] == sorted(effect.share for effect in found)
    for effect in found:
        again = search(replace(effect.lever.question, accelerators=(plan.best.accelerator,)))
        assert again.best is not None
        assert again.best.devices == effect.design.devices
        assert f"instead of {plan.best.devices}" in effect.sentence


def test_prefix_reuse_is_a_line_of_every_answer(question: Question) -> None:
    plan = search(users(question, 400))
    (line,) = prefix_lines(plan)
    assert line.startswith("Prefix cache: 0% of the input is assumed")
    assert "50% would make it" in line
    assert "80% would make it" in line


def test_the_command_line_asks_both(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("llama-3.1-8b", "--isl", "2k", "--osl", "256", "--split", "never", "--json", "--quick")
    with pytest.raises(SystemExit):
        main(["plan", *common, "--gpus", "2xl40s"])
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["accelerator"], found["devices"]) == ("l40s", 2)
    assert found["users"] > 1
    with pytest.raises(SystemExit):
        main(["plan", *common, "--gpus", "l40s", "--users", "8", "--layout", "tp=1", "--layout", "tp=2"])
    assert [entry["layout"] for entry in json.loads(capsys.readouterr().out)] == ["tp1", "tp2"]
