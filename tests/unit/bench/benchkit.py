"""Records, runs and a server that answers as it is told, for the bench's tests."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from shoal.policy.outcomes import Outcome
from shoal.workload.records import Phase, Record
from shoal.workload.run import RunResult


def record(
    index: int = 0,
    *,
    scheduled: float = 0.0,
    late: float = 0.0,
    ttft: float = 0.1,
    gap: float = 0.01,
    tokens: int = 5,
    outcome: Outcome = Outcome.OK,
    phase: Phase = Phase.MEASURED,
    **changed: object,
) -> Record:
    """A request whose tokens come at equal gaps."""
    events = tuple(scheduled + ttft + i * gap for i in range(tokens)) if outcome is Outcome.OK else ()
    values: dict[str, object] = {
        "index": index,
        "session": index,
        "turn": 0,
        "phase": phase,
        "scheduled": scheduled,
        "sent": scheduled + late,
        "ended": events[-1] if events else scheduled + ttft,
        "events": events,
        "last": events[-1] if events else None,
        "outcome": outcome,
        "status": 200,
        "error": "" if outcome is Outcome.OK else f"ended as {outcome}",
        "asked_prompt": 10,
        "asked_output": tokens,
        "prompt_tokens": 10,
        "output_tokens": tokens if outcome is Outcome.OK else 0,
        "output_counted": outcome is Outcome.OK,
        "cached_tokens": None,
    }
    return Record(**{**values, **changed})  # type: ignore[arg-type]


def result(records: list[Record], start: float = 0.0, end: float = 1.0, **changed: object) -> RunResult:
    values: dict[str, object] = {
        "records": tuple(records),
        "start": start,
        "end": end,
        "load": "test",
        "concurrency": None,
        "requested_rate": None,
        "partial": False,
    }
    return RunResult(**{**values, **changed})  # type: ignore[arg-type]


@dataclass
class Seen:
    """What a fake server was asked."""

    bodies: list[dict[str, object]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0


Write = Callable[[bytes], Awaitable[None]]
Answerer = Callable[[dict[str, object], Write], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(value: object) -> bytes:
    return chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")


def refusal(status: int, text: str = "no") -> bytes:
    body = json.dumps({"error": {"message": text}}).encode()
    return (
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        + body
    )


def plain(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def stream(body: dict[str, object], write: Write) -> None:
    """A whole answer: a word a token, then usage."""
    await write(HEAD)
    wanted = int(body["max_tokens"])  # type: ignore[call-overload]
    for i in range(wanted):
        reason = "length" if i + 1 == wanted else None
        choice = {"index": 0, "text": " a", "finish_reason": reason, "token_ids": [7]}
        await write(event({"choices": [choice]}))
    prompt = body.get("prompt", "")
    usage = {"prompt_tokens": len(prompt), "completion_tokens": wanted}  # type: ignore[arg-type]
    await write(event({"choices": [], "usage": usage}))
    await write(event(b"[DONE]") + b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def serving(
    answer: Answerer, *, tokenizer: bool = True, prompt_ids: bool = False
) -> AsyncIterator[tuple[str, Seen]]:
    """An OpenAI-like server on a free port; `answer` writes the response of each completion.

    The probe's own requests (at most 2 tokens) always get a whole answer, of text prompts
    with `prompt_ids` if it says so.
    """
    seen = Seen()

    async def probed(body: dict[str, object], write: Write) -> None:
        if not prompt_ids or not isinstance(body["prompt"], str):
            await stream(body, write)
            return
        ids = [1, *(100 + i for i in range(len(body["prompt"].split())))]
        choice = {"index": 0, "text": " a", "finish_reason": "length", "token_ids": [7], "prompt_token_ids": ids}
        await write(HEAD + event({"choices": [choice]}) + event(b"[DONE]") + b"0\r\n\r\n")

    async def respond(path: str, body: dict[str, object], write: Write) -> None:
        if path == "/v1/models":
            await write(plain({"data": [{"id": "fake", "max_model_len": 4096}]}))
        elif path == "/tokenize":
            text = str(body.get("prompt", ""))
            tokens = list(range(100, 100 + len(text.split())))
            await write(plain({"tokens": tokens, "count": len(tokens)}) if tokenizer else refusal(404))
        else:
            await (probed if int(body["max_tokens"]) <= 2 else counted)(body, write)  # type: ignore[call-overload]

    async def counted(body: dict[str, object], write: Write) -> None:
        seen.bodies.append(body)
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            await answer(body, write)
        finally:
            seen.in_flight -= 1

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.lower().splitlines() if line.startswith("content-length")]
                raw = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
                await respond(head.split()[1], json.loads(raw) if raw else {}, write)
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()


@contextlib.contextmanager
def serving_thread(answer: Answerer) -> Iterator[tuple[str, Seen]]:
    """The same from another thread, for what runs an event loop of its own."""
    loop = asyncio.new_event_loop()
    ready, holder, done = threading.Event(), [], asyncio.Event()

    async def main() -> None:
        async with serving(answer) as served:
            holder.append(served)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield holder[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(20)
