"""The client over real sockets: every ending gets its type, loops keep their promises, and nothing hangs."""

import asyncio
import itertools
import json
from collections.abc import Callable

import pytest
from benchkit import HEAD, Write, chunk, event, refusal, serving, stream

from shoal.bench.events import error_text
from shoal.bench.job import Job
from shoal.bench.protocol import Protocol, ProtocolOptions
from shoal.bench.run import Runner
from shoal.bench.target import BenchError, Target, TargetOptions
from shoal.policy.outcomes import Outcome
from shoal.specs.errors import SpecError
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Shape, at_times, made_up
from shoal.workload.objectives import Objectives
from shoal.workload.options import WorkloadOptions, workload
from shoal.workload.run import RunOptions

SHAPE = Shape(parse_lengths("16", "input"), parse_lengths("6", "output"))


async def refused(body: dict[str, object], write: Write, status: int) -> None:
    await write(refusal(status, f"status {status}"))


async def cut(body: dict[str, object], write: Write) -> None:
    """A stream that ends as if it were whole, but has no finish reason."""
    await write(HEAD + event({"choices": [{"text": " a"}]}) + b"0\r\n\r\n")


async def broken(body: dict[str, object], write: Write) -> None:
    await write(HEAD + event({"choices": [{"text": " a"}]}))
    raise ConnectionResetError


async def garbage(body: dict[str, object], write: Write) -> None:
    await write(HEAD + chunk(b"data: {nonsense\n\n") + b"0\r\n\r\n")


async def error_event(body: dict[str, object], write: Write) -> None:
    await write(HEAD + event({"error": {"message": "out of luck"}}) + b"0\r\n\r\n")


async def all_at_once(body: dict[str, object], write: Write) -> None:
    """A whole answer in one write: its tokens come at one moment, so that their time per token is 0."""
    written: list[bytes] = []

    async def collect(data: bytes) -> None:
        written.append(data)

    await stream(body, collect)
    await write(b"".join(written))


async def silent(body: dict[str, object], write: Write) -> None:
    await write(HEAD + event({"choices": [{"text": " a"}]}))
    await asyncio.sleep(30)


async def not_a_stream(body: dict[str, object], write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi")


def status(code: int) -> Callable[[dict[str, object], Write], object]:
    async def answer(body: dict[str, object], write: Write) -> None:
        await refused(body, write, code)

    return answer


@pytest.mark.parametrize(
    ("answer", "outcome", "says"),
    [
        (status(400), Outcome.CLIENT_ERROR, "status 400"),
        (status(401), Outcome.CLIENT_ERROR, "status 401"),
        (status(429), Outcome.BACKPRESSURE, "status 429"),
        (status(503), Outcome.BACKPRESSURE, "status 503"),
        (status(500), Outcome.REPLICA_FAULT, "status 500"),
        (cut, Outcome.REPLICA_FAULT, "without a finish reason"),
        (broken, Outcome.TRANSPORT_FAULT, "closed the connection"),
        (garbage, Outcome.REPLICA_FAULT, "not an event"),
        (error_event, Outcome.REPLICA_FAULT, "out of luck"),
        (not_a_stream, Outcome.REPLICA_FAULT, "not a stream"),
        (silent, Outcome.DEADLINE, "within 0.5 s"),
    ],
)
async def test_every_ending_has_its_type(answer: object, outcome: Outcome, says: str) -> None:
    async with serving(answer) as (url, _), await Target.open(TargetOptions(url)) as target:  # type: ignore[arg-type]
        options = RunOptions(deadline=0.5)
        done = await Runner(target, options).run(at_times(made_up(SHAPE, 2, 0), "burst", 1, 0))
    assert [r.outcome for r in done.records] == [outcome, outcome]
    assert all(says in r.error for r in done.records), done.records[0].error
    assert not done.partial


async def test_an_answer_is_read_to_its_last_detail() -> None:
    async with serving(stream) as (url, seen), await Target.open(TargetOptions(url)) as target:
        assert target.takes_ids
        assert target.returns_ids
        assert target.max_model_len == 4096
        done = await Runner(target, RunOptions()).run(at_times(made_up(SHAPE, 3, 0), "constant", 50, 0))
    for r in done.records:
        assert (r.outcome, r.output_tokens, r.prompt_tokens, len(r.events)) == (Outcome.OK, 6, 16, 6)
        assert (r.finish_reason, r.asked_prompt) == ("length", 16)
        assert r.scheduled <= r.sent <= r.events[0] <= r.events[-1] <= r.ended
    assert [r.scheduled for r in done.records] == pytest.approx([0, 0.02, 0.04])
    assert all(len(b["prompt"]) == 16 and b["ignore_eos"] is True for b in seen.bodies)  # type: ignore[arg-type]


async def test_a_closed_loop_keeps_its_concurrency_from_warm_up_to_the_last_answer() -> None:
    three = asyncio.Barrier(3)

    async def together(body: dict[str, object], write: Write) -> None:
        # Answers only where three wait: a drained warm-up of two, or a tail of one, would wait for ever.
        await three.wait()
        await stream(body, write)

    options = RunOptions(requests=10, concurrency=3, warmup=2, deadline=20)
    async with serving(together) as (url, seen), await Target.open(TargetOptions(url)) as target:
        done = await Runner(target, options).run(made_up(SHAPE, 40, 0))
    assert seen.most_in_flight == 3
    assert len(done.measured) == 10
    assert all(r.ok for r in done.measured)
    assert done.start <= min(r.scheduled for r in done.measured)
    assert done.end == max(r.ended for r in done.measured)
    assert not done.partial


async def test_a_closed_loop_ends_by_time_too() -> None:
    async with serving(stream) as (url, _), await Target.open(TargetOptions(url)) as target:
        done = await Runner(target, RunOptions(seconds=0.2, concurrency=2)).run(made_up(SHAPE, 8, 0))
    assert done.measured
    assert max(r.scheduled for r in done.measured) < done.start + 0.21
    assert any("repeated" in n for n in done.notes) == (len(done.records) > 8)


async def test_stopping_gives_what_there_is() -> None:
    stop = asyncio.Event()

    async def answer(body: dict[str, object], write: Write) -> None:
        stop.set()
        await silent(body, write)

    async with serving(answer) as (url, _), await Target.open(TargetOptions(url)) as target:
        load = at_times(made_up(SHAPE, 500, 0), "constant", 100, 0)
        done = await asyncio.wait_for(Runner(target, RunOptions(), stop).run(load), 10)
    assert done.partial
    assert 1 <= len(done.records) < 500
    assert {r.outcome for r in done.records} == {Outcome.CANCELLED}


async def test_a_conversation_carries_the_answers_it_got() -> None:
    shape = Shape(parse_lengths("10", "i"), parse_lengths("3", "o"), turns=parse_lengths("3", "t"), shared=4)
    async with serving(stream) as (url, seen), await Target.open(TargetOptions(url)) as target:
        await Runner(target, RunOptions()).run(at_times(made_up(shape, 1, 0), "burst", 1, 0))
    prompts = [b["prompt"] for b in seen.bodies]
    assert [len(p) for p in prompts] == [14, 27, 40]  # type: ignore[arg-type]
    for before, after in itertools.pairwise(prompts):
        assert after[: len(before) + 3] == [*before, 7, 7, 7]  # type: ignore[arg-type,index,misc]


async def test_chat_conversations_alternate_roles() -> None:
    shape = Shape(parse_lengths("10", "i"), parse_lengths("3", "o"), turns=parse_lengths("2", "t"), shared=4)
    async with serving(stream) as (url, seen), await Target.open(TargetOptions(url, api="chat")) as target:
        await Runner(target, RunOptions()).run(at_times(made_up(shape, 1, 0), "burst", 1, 0))
    assert [m["role"] for m in seen.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]  # type: ignore[attr-defined]
    assert seen.bodies[-1]["messages"][2]["content"] == " a a a"  # type: ignore[index]


async def test_a_new_salt_changes_contents_and_nothing_else() -> None:
    async with serving(stream) as (url, seen), await Target.open(TargetOptions(url)) as target:
        load = at_times(made_up(SHAPE, 3, 0), "burst", 1, 0)
        for salt in ("a", "b", "a"):
            await Runner(target, RunOptions(salt=salt)).run(load)
    runs = [sorted(json.dumps(b["prompt"]) for b in seen.bodies[i : i + 3]) for i in (0, 3, 6)]
    assert runs[0] == runs[2]
    assert not set(runs[0]) & set(runs[1])


async def test_a_server_without_a_tokenizer_gets_text() -> None:
    async with serving(stream, tokenizer=False) as (url, seen), await Target.open(TargetOptions(url)) as target:
        done = await Runner(target, RunOptions()).run(at_times(made_up(SHAPE, 1, 0), "burst", 1, 0))
    assert len(str(seen.bodies[0]["prompt"]).split()) == 16
    assert any("approximate" in n for n in done.notes)


async def test_token_ids_of_a_completion_stand_in_for_a_tokenizer() -> None:
    """A gateway that passes completions on, but not /tokenize, still gets prompts of exact length."""
    async with (
        serving(stream, tokenizer=False, prompt_ids=True) as (url, seen),
        await Target.open(TargetOptions(url)) as target,
    ):
        assert target.takes_ids
        assert 1 not in target.token_pool
        done = await Runner(target, RunOptions()).run(at_times(made_up(SHAPE, 2, 0), "burst", 1, 0))
    assert all(len(body["prompt"]) == r.asked_prompt for body, r in zip(seen.bodies, done.records, strict=True))  # type: ignore[arg-type]
    assert not any("approximate" in n for n in done.notes)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "ftp://host"])
async def test_an_endpoint_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(BenchError, match=url):
        await Target.open(TargetOptions(url))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "m"}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"message": "m"}', "m"),
        (b'{"detail": [1]}', "[1]"),
        (b"<html>", "<html>"),
    ],
)
def test_the_text_of_an_error_is_found(body: bytes, text: str) -> None:
    assert error_text(body) == text


def test_options_that_contradict_are_refused() -> None:
    with pytest.raises(SpecError, match="concurrency"):
        WorkloadOptions(rate=1.0, concurrency=2)
    with pytest.raises(SpecError, match="duration"):
        WorkloadOptions(duration=-1.0)
    load, run = workload(WorkloadOptions(rate=10.0, duration=3.0, warmup=5))
    assert (len(load.sessions), run.warmup, run.concurrency) == (35, 5, None)
    again = [workload(WorkloadOptions(rate=10.0), name=name)[0].sessions[-2].at for name in ("a", "a", "b")]
    assert again[0] == again[1] != again[2]
    load, run = workload(WorkloadOptions(concurrency=4, requests=10))
    assert (run.requests, run.warmup, run.concurrency) == (10, 4, 4)
    assert load.requests >= 14


async def test_the_protocol_ends_where_answers_come_all_at_once() -> None:
    async with serving(all_at_once) as (url, _), await Target.open(TargetOptions(url)) as target:
        job = Job(Objectives(share=0.5))
        options = ProtocolOptions(SHAPE, requests=6, seconds=0.05, most_users=2, tolerance=1.0, points=1)
        protocol = Protocol(job, target, options, [], [])
        await protocol.run()
    ladder = next(s for s in protocol.sections if s.title.startswith("2"))
    assert "–" in {row[-1] for row in ladder.tables[0].rows}
    assert protocol.sections[-1].title == "Drift"
