"""Planners' miss 6 of issue 14: growth over months."""

import itertools
import json
import re
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli.entry import main
from shoal.cli.page_answers import plan_answer
from shoal.plan.api import ask
from shoal.plan.growth import DEFAULT_MONTHS, Grown, Growth, grow, identity, parse_growth, room
from shoal.plan.growth_lines import growth_data, growth_lines, month_rows
from shoal.plan.node_packing import pack, units_of
from shoal.plan.question import Question
from shoal.plan.search import search
from shoal.specs.errors import SpecError


def question(users: float | None = 60, **more: object) -> Question:
    figures: dict[str, object] = {"gpu": ["l40s"], "input_tokens": 2048, "output_tokens": 256, "split": "never"}
    return ask("llama-3.1-8b", users=users, **{**figures, **more})  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def grown(text: str = "25%/month", months: int | None = None, basis: str = "rented", **more: object) -> Grown:
    return grow(question(basis=basis, **more), parse_growth(text, "growth"), months)


@pytest.mark.parametrize(
    ("text", "rate", "listed"),
    [
        ("15%/month", 0.15, ()), ("15%", 0.15, ()), ("+15 % per month", 0.15, ()), ("-5%/mo", -0.05, ()),
        ("100%/year", 2 ** (1 / 12) - 1, ()), ("100; 150; 2k", 0.0, (100, 150, 2000)),
        ("100, 150, 200", 0.0, (100, 150, 200)), ("100 8,192 200", 0.0, (100, 8192, 200)),
    ],
)  # fmt: skip
def test_growth_as_people_type_it(text: str, rate: float, listed: tuple[float, ...]) -> None:
    found = parse_growth(text, "growth")
    assert found.rate == pytest.approx(rate)
    assert found.listed == listed


@pytest.mark.parametrize(
    "text", ["", "fast", "15", "100,150,200", "-100%", "5000%/month", "1..5%", "100; many", "15%/day"]
)
def test_growth_that_is_none_says_what_is(text: str) -> None:
    with pytest.raises(SpecError, match=r"15%/month or 100%/year"):
        parse_growth(text, "growth")


def test_a_comma_that_may_mean_thousands_is_asked_about() -> None:
    with pytest.raises(SpecError, match="thousands or months"):
        parse_growth("100,150,200", "growth")


def test_users_grow_by_the_rate_from_the_first_month_on() -> None:
    found = grown()
    users = [month.workload.users for month in found.months]
    assert len(users) == DEFAULT_MONTHS
    assert users == pytest.approx([60 * 1.25**month for month in range(DEFAULT_MONTHS)])


def test_each_month_serves_its_users_with_the_same_design() -> None:
    found = grown()
    assert len({identity(month.design) for month in found.months}) == 1
    for month in found.months:
        alone = search(ask_of(found, month.number))
        same = next(d for d in alone.designs if identity(d) == identity(month.design))
        assert (same.replicas, same.devices) == (month.design.replicas, month.design.devices)


def ask_of(found: Grown, number: int) -> Question:
    return replace(found.question, workload=found.months[number - 1].workload)


def test_it_costs_least_of_all_designs_that_serve_every_month() -> None:
    found = grown()
    assert found.total is not None
    plans = [search(ask_of(found, month.number)) for month in found.months]
    families = [{identity(d): d for d in reversed(plan.designs)} for plan in plans]
    totals = [
        sum(family[key].cost.per_hour for family in families)  # type: ignore[union-attr]
        for key in set(families[0]).intersection(*families[1:])
    ]
    assert found.total == pytest.approx(min(totals) * 730)


@settings(max_examples=6, deadline=None)
@given(users=st.floats(1, 400), rate=st.floats(0, 1.5), model=st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]),
       split=st.sampled_from(["never", "only"]), months=st.integers(2, 8))  # fmt: skip
def test_devices_never_fall_while_users_rise(
    users: float, rate: float, model: str, split: str, months: int
) -> None:
    asked = ask(model, gpu=["h100"], users=users, input_tokens=4096, output_tokens=256, split=split, basis="rented")  # type: ignore[arg-type]
    found = grow(asked, Growth(rate), months)
    devices = [month.devices for month in found.months]
    assert devices == sorted(devices)
    dollars = [month.dollars or 0 for month in found.months]
    assert dollars == sorted(dollars)
    servers = [month.servers for month in found.months]
    assert servers == sorted(servers)


def test_what_was_bought_stays_when_users_fall_and_rented_devices_go() -> None:
    listed = "300; 60; 300"
    owned, rented = grown(listed, basis="owned"), grown(listed, basis="rented")
    high = owned.months[0].devices
    assert [month.devices for month in owned.months] == [high] * 3
    assert rented.months[1].devices < rented.months[0].devices
    assert owned.months[1].design.devices == rented.months[1].design.devices


def test_servers_are_those_that_the_devices_fill() -> None:
    for month in grown().months:
        servers = pack(units_of("", grown().question, month.design))
        assert servers is not None
        assert month.servers == len(servers)


def test_every_sentence_agrees_with_the_months() -> None:
    """Issue 14, fault 11."""
    for found in (grown(), grown("100; 90; 300; 800"), grown("2%/month"), grown(max_devices=8), grown("5%", 3)):
        months, text = found.months, "\n".join(growth_lines(found))
        numbered = re.findall(
            r"Servers? (\d+)(?: to (\d+))? (?:is|are) needed in month (\d+) \(([\d,]+) users\)", text
        )
        expected = []
        for before, after in itertools.pairwise(months):
            if after.servers > before.servers:
                users = after.workload.users or 0
                expected.append((before.servers + 1, after.servers, after.number, -(-users // 1)))
        assert [(int(a), int(b or a), int(m), float(u.replace(",", ""))) for a, b, m, u in numbered] == expected
        assert ("of month 1 last" in text) == (not expected)
        total = re.search(r"Total: \$([\d,.]+) rented over (\d+) month", text)
        assert total is not None
        assert float(total[1].replace(",", "")) == pytest.approx(found.total or 0, rel=0.01)
        assert int(total[2]) == len(months)
        most = re.search(rf"The servers of month {len(months)} hold up to ([\d,]+) users", text)
        assert most is not None
        assert float(most[1].replace(",", "")) == room(found)
        later = re.search(r"a month passes in month (\d+)", text)
        if later is not None:
            start = months[0].workload.users or 0
            assert start * (1 + found.growth.rate) ** (int(later[1]) - 1) > (room(found) or 0)


def test_the_last_months_servers_hold_as_many_as_is_said_and_no_more() -> None:
    found = grown("10%", 3)
    most = room(found)
    last = found.months[-1]
    assert most is not None
    limit = last.servers * last.design.accelerator.devices_per_node
    asked = question(most, max_devices=limit, basis="rented")
    same = [d for d in search(asked).designs if identity(d) == identity(last.design)]
    assert same
    more = question(most + 1, max_devices=limit, basis="rented")
    assert all(identity(d) != identity(last.design) for d in search(more).designs)


def test_months_that_nothing_serves_are_said() -> None:
    found = grown(max_devices=2)
    assert 0 < len(found.months) < found.asked
    assert f"From month {len(found.months) + 1} on nothing serves: the traffic needs" in growth_lines(found)[-1]
    never = grow(question(60, tpot=1e-4), Growth(0.1), 3)
    assert never.months == ()
    assert growth_lines(never)[0].startswith("From month 1 on nothing serves: TPOT 0.1 ms is impossible")


def test_a_rate_of_requests_grows_too() -> None:
    found = grow(question(None, rate=5.0), Growth(0.5), 3)
    assert [month.workload.rate for month in found.months] == pytest.approx([5, 7.5, 11.25])
    assert "requests/s" in month_rows(found)[0][1]


def run(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["plan", "llama-3.1-8b", "--gpu", "l40s", "--isl", "2k", "--osl", "256", *arguments.split()])
    captured = capsys.readouterr()
    return int(done.value.code or 0), captured.out, captured.err


def test_the_command_line_prints_months(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("--users 60 --split never --growth 25% --months 4", capsys)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if re.match(r"\s+\d", line)] == ["1", "2", "3", "4"]
    status, out, _ = run("--users 60 --split never --growth 25% --months 4 --rented --json", capsys)
    data = json.loads(out)
    assert [month["month"] for month in data["months"]] == [1, 2, 3, 4]
    assert data["usd_total"] == pytest.approx(sum(month["usd"] for month in data["months"]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--users 60 --growth fast", "--growth"), ("--growth 25%", "users or a rate"),
        ("--users 60 --months 3", "growth too"), ("--users 60 --growth 10;20 --months 3", "2 months of the list"),
        ("--users 60 --growth 25% --months 0", "--months"), ("--users 60 --growth 25% --layout tp=1", "no layout"),
    ],
)  # fmt: skip
def test_what_makes_no_growth_is_refused(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(arguments, capsys)
    assert status == 2
    assert said in error


def test_the_page_answers_growth_with_the_same_rows() -> None:
    body = {"model": "llama-3.1-8b", "gpu": "l40s", "users": "60", "input": "2048", "output": "256",
            "split": "never", "prices": "rented", "growth": "25%", "months": "3"}  # fmt: skip
    found = plan_answer(json.dumps(body).encode(), ())
    assert found["growth"] == growth_data(grown("25%", 3))
    assert "--growth 25%" in str(found["command"])
