"""Traces of agents: who waits for whom, how prompts grow, and that the client waits as they say."""

import json
from pathlib import Path

import pytest
from benchkit import Write, refusal, serving, stream

from shoal.bench.run import Runner
from shoal.bench.target import Target, TargetOptions
from shoal.plan.readers.trace import read_trace
from shoal.specs.errors import SpecError
from shoal.workload.load import Load, part
from shoal.workload.run import RunOptions
from shoal.workload.traces import Cut, trace_load

SIZES = {"input_length": 16, "output_length": 4}
AGENTS = (
    {"request_id": "plan", "session_id": "a", "timestamp": 1000, **SIZES, "hash_ids": [1]},
    {"request_id": "left", "wait_for": ["plan"], "delay": 20, "session_id": "a", **SIZES, "hash_ids": [1]},
    {"request_id": "right", "wait_for": ["plan"], "delay": 5, "tool_wait_ms": 10, **SIZES, "hash_ids": [3]},
    {"request_id": "join", "wait_for": ["left", "right"], **SIZES, "hash_ids": [1], "priority": -2, "model": "big"},
    {"request_id": "other", "timestamp": 1100, **SIZES},
)
CHAT = (
    {"session_id": 7, "timestamp": 0, "input_length": 100, "output_length": 10},
    {"session_id": 7, "delay": 500, "input_length": 20, "output_length": 10},
    {"session_id": 8, "timestamp": 100, "input_length": 30, "output_length": 10},
    {"session_id": 7, "delay": 1500, "input_length": 5, "output_length": 3},
)


def written(tmp_path: Path, rows: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # type: ignore[attr-defined]
    return path


def agents(tmp_path: Path, **cut: object) -> Load:
    return trace_load(written(tmp_path, AGENTS), Cut(**cut))  # type: ignore[arg-type]


def test_requests_wait_for_those_they_name(tmp_path: Path) -> None:
    plan, right, left, join, other = agents(tmp_path, models=True).sessions
    assert (plan.after, plan.at, plan.name) == ((), 0.0, "a")
    assert (left.after, left.at, left.name) == ((0,), 0.02, "a")
    assert right.at == pytest.approx(0.015)
    assert (join.after, join.at) == ((2, 1), 0.0)
    assert (join.turns[0].priority, join.turns[0].model) == (-2, "big")
    assert (other.after, other.at) == ((), pytest.approx(0.1))
    assert agents(tmp_path).sessions[3].turns[0].model is None
    # Equal ids are equal tokens: the prompt of `left` begins as that of `plan`.
    assert left.turns[0].new == plan.turns[0].new


def test_a_cut_trace_starts_with_what_it_would_have_waited_for(tmp_path: Path) -> None:
    load = trace_load(written(tmp_path, AGENTS), Cut(start=0.01))
    assert [s.after for s in load.sessions] == [(), (), (1, 0), ()]
    assert load.sessions[0].at == 0.0
    assert [s.after for s in agents(tmp_path, limit=2).sessions] == [(), (0,)]


def test_it_cannot_be_cut_into_parts(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"rounds.*wait for one another"):
        part(agents(tmp_path), 0, 2)


def test_speed_does_not_hurry_tools(tmp_path: Path) -> None:
    load = trace_load(written(tmp_path, AGENTS), Cut(), speed=10.0)
    assert [s.at for s in load.sessions] == pytest.approx([0.0, 0.015, 0.02, 0.0, 0.01])


def test_sessions_without_hash_ids_are_conversations_that_grow(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT)
    first, other = trace_load(path, Cut()).sessions
    assert [(sum(s.tokens for s in t.new), t.output, t.think) for t in first.turns] == [
        (100, 10, 0.0), (20, 10, 0.5), (5, 3, 1.5)
    ]  # fmt: skip
    assert (other.at, len(other.turns)) == (0.1, 1)
    # What a plan reads are whole prompts: 100, 100 + 10 + 20, and 130 + 10 + 5.
    assert sorted(r.input for r in read_trace(path)) == [30, 100, 130, 145]
    short = trace_load(path, Cut(max_input=131))
    assert [len(s.turns) for s in short.sessions] == [2, 1]
    assert "1 of 4 trace requests were left out" in short.notes[0]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"request_id": "x", "wait_for": ["nobody"], **SIZES}, "line 6.*'nobody' is no request_id of an earlier"),
        ({"request_id": "join", "timestamp": 0, **SIZES}, "line 6.*'join' is on an earlier line"),
        ({"request_id": "x", "wait_for": "join", **SIZES}, "line 6.*no list of request ids"),
        ({"request_id": "x", "wait_for": ["join"], "delay": -1, **SIZES}, "line 6.*delay -1 is no time"),
        ({"request_id": "x", **SIZES}, "line 6.*no timestamp"),
        ({"request_id": ["x"], "timestamp": 0, **SIZES}, "line 6.*request_id"),
        ({"timestamp": 0, "priority": "high", **SIZES}, "line 6.*priority 'high'"),
        ({"timestamp": 0, "model": 5, **SIZES}, "line 6.*model 5"),
        ({"timestamp": float("nan"), **SIZES}, "line 6.*timestamp nan"),
        ([1, 2], "line 6.*list, not an object"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, row: object, what: str) -> None:
    with pytest.raises(SpecError, match=r"trace\.jsonl: " + what):
        read_trace(written(tmp_path, (*AGENTS, row)))


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, AGENTS)
    path.write_bytes(path.read_bytes() + b'\xff{"timestamp"\n')
    with pytest.raises(SpecError, match=r"trace\.jsonl: line 6"):
        read_trace(path)


async def test_the_client_waits_for_answers(tmp_path: Path) -> None:
    async with serving(stream) as (url, seen), await Target.open(TargetOptions(url)) as target:
        done = await Runner(target, RunOptions()).run(agents(tmp_path, models=True))
        with pytest.raises(SpecError, match="open loop"):
            await Runner(target, RunOptions(concurrency=1)).run(agents(tmp_path))
    by = {r.session: r for r in done.records}
    assert all(r.ok for r in done.records)
    assert len(by) == 5
    assert by[2].scheduled >= by[0].ended + 0.02
    assert by[1].scheduled >= by[0].ended + 0.015
    assert by[3].sent >= max(by[1].ended, by[2].ended)
    assert by[3].model == "big"
    assert [b["model"] for b in seen.bodies if b.get("priority")] == ["big"]


async def test_what_waits_for_a_failure_is_not_sent(tmp_path: Path) -> None:
    async def answer(body: dict[str, object], write: Write) -> None:
        await (write(refusal(500)) if len(seen.bodies) == 1 else stream(body, write))

    async with serving(answer) as (url, seen), await Target.open(TargetOptions(url)) as target:
        done = await Runner(target, RunOptions()).run(agents(tmp_path))
    assert sorted(r.session for r in done.records) == [0, 4]
    assert any("3 sessions were not sent" in note for note in done.notes)
    assert not done.partial
