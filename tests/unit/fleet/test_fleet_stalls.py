"""The gateway's event loop goes on while large and dense bodies come in."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from fleet import fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.fleet.gateway import body as body_module
from shoal.fleet.gateway.body import parse, prefix_chain

MIB = 2**20


class Heartbeat:
    """The longest that the loop did not run, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            self.longest = max(self.longest, time.perf_counter() - before)

    async def stop(self) -> float:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.longest


def lists() -> bytes:
    return (
        b'{"model":"fake","messages":[{"role":"user","content":"a"}],"metadata":{"a":['
        + b"[]," * (5 * MIB)
        + b"[]]}}"
    )


def ids() -> bytes:
    return b'{"model":"fake","prompt":[' + b"1," * (7 * MIB) + b"1]}"


@pytest.mark.parametrize(("make", "path"), [(lists, "/v1/chat/completions"), (ids, "/v1/completions")])
async def test_a_body_of_15_mib_of_structure_is_refused_without_a_stall(make: Any, path: str) -> None:
    """Decoding seven million ids on the loop took the gateway more than a second of everybody's streams."""
    body = make()
    async with fleet(1, config=GatewayConfig()) as f:

        def post() -> httpx.Response:
            return httpx.post(
                f.url + path,
                content=body,
                headers={"content-type": "application/json"},
                timeout=60,
                trust_env=False,
            )

        watch = Heartbeat()
        answer = await asyncio.to_thread(post)
        assert await watch.stop() < 0.5
        assert answer.status_code == 400
        assert "JSON values" in answer.json()["error"]["message"]
        assert f.counts() == [0]


async def test_a_large_body_is_parsed_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    loop_thread, threads = threading.get_ident(), []

    def noting(endpoint: Any, data: bytes) -> Any:
        threads.append(threading.get_ident())
        return parse(endpoint, data)

    monkeypatch.setattr(body_module, "parse", noting)
    async with fleet(1, config=GatewayConfig()) as f:
        assert (await f.post(f.chat("x" * MIB))).status_code == 200
        assert (await f.post(f.chat("x"))).status_code == 200
    assert threads[0] != loop_thread
    assert threads[1] == loop_thread


LIMITED = {"max_model_len": 1000, "max_prompt_bytes": 20_000}
TEXT = "the quick brown fox " * (MIB // 20)
HOPELESS = {
    "a chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}, "messages"),
    "parts": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
        "messages",
    ),
    "a prompt": ("/v1/completions", {"prompt": TEXT}, "prompt"),
    "one of two prompts": ("/v1/completions", {"prompt": ["a", TEXT]}, "prompt"),
    "token ids": ("/v1/completions", {"prompt": [1] * 200_000}, "prompt"),
    "a message": ("/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}, "messages"),
}


@pytest.mark.parametrize("name", HOPELESS)
async def test_a_prompt_that_no_context_can_hold_reaches_no_replica(name: str) -> None:
    path, fields, field = HOPELESS[name]
    async with fleet(1, handle=LIMITED) as f:
        answer = await f.post({"model": "fake", **fields}, path)
        assert answer.status_code == 400
        assert f.counts() == [0]
    error = answer.json()["error"]
    assert "context of this model is 1000 tokens" in error["message"]
    if path == "/v1/messages":
        # The words by which Claude Code knows that it has to compact the conversation.
        assert error["message"].startswith("prompt is too long")
    else:
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)


PERHAPS = {
    "white space, which templates trim": {"messages": [{"role": "user", "content": " " * MIB + "\n" * MIB}]},
    "an earlier answer, of which the reasoning is left out": {
        "messages": [{"role": "assistant", "content": TEXT}, {"role": "user", "content": "a"}]
    },
    "control characters, which a vocabulary may lack": {"messages": [{"role": "user", "content": "\x04" * MIB}]},
    "a field that the engine ignores": {"messages": [{"role": "user", "content": "a", "cache": TEXT}]},
    "what is cut on request": {"messages": [{"role": "user", "content": TEXT}], "truncate_prompt_tokens": 9},
    "what only the engine can refuse": {"messages": [{"role": "user", "content": {"text": TEXT}}]},
}


@pytest.mark.parametrize("name", PERHAPS)
async def test_what_a_replica_may_accept_reaches_it(name: str) -> None:
    async with fleet(1, handle=LIMITED) as f:
        await f.post({"model": "fake", "messages": [], **PERHAPS[name]})
        assert f.counts() == [1]


async def test_where_a_replica_does_not_tell_its_context_nothing_is_refused() -> None:
    async with fleet(1, handle={"max_model_len": 1000}) as f:
        await f.post({"model": "fake", "messages": [{"role": "user", "content": TEXT}]})
        assert f.counts() == [1]


def test_hashes_of_a_long_prompt_are_those_of_its_beginning() -> None:
    content = "".join(chr(97 + i % 23) for i in range(2 * MIB))
    parsed = parse("chat", json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())
    whole = bytes(parsed.ask.messages)[:-1]
    assert prefix_chain(b"", whole, body_module.BLOCK_BYTES) == prefix_chain(
        b"", whole[: body_module._MAX_HASHED_BYTES], body_module.BLOCK_BYTES
    )


def test_a_long_list_of_ids_is_routed_by_its_bytes() -> None:
    short = parse("completions", b'{"model":"m","prompt":[1,2,3]}')
    long = parse("completions", b'{"model":"m","prompt":[' + b"1," * MIB + b"1]}")
    assert (short.tokens, long.tokens) == ([1, 2, 3], None)
    assert parse("completions", b'{"model":"m","prompt":[1,-2]}').tokens is None
    assert parse("completions", b'{"model":"m","prompt":[1,2147483648]}').tokens is None
