"""What clients and proxies do with HTTP: compressed bodies, trailing slashes, silence that is taken for death."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest
from engine import Fault, expected_text, tokens_of

from fleet import Fleet, Streamed, eventually, fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.http.encodings import decompress
from shoal.http.errors import ApiError

HEARTBEAT = b": keep-alive\n\n"


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


async def test_compressed_bodies_and_trailing_slashes_are_understood() -> None:
    async with fleet(1, config=GatewayConfig(max_body_bytes=50_000)) as f:
        body = json.dumps(f.chat("squeeze")).encode()
        path = "/v1/chat/completions"

        async def send(encoded: bytes, encoding: str, to: str = path) -> Any:
            headers = {"content-type": "application/json", "content-encoding": encoding}
            return await f.client.post(to, content=encoded, headers=headers)

        for encoded, name in (
            (gzip.compress(body), "gzip"),
            (gzip.compress(body[:9]) + gzip.compress(body[9:]), "GZIP"),
            (zlib.compress(body), "deflate"),
            (raw_deflate(body), "deflate"),
            (body, "identity"),
        ):
            answer = await send(encoded, name, path + "/")
            assert answer.status_code == 200, (name, answer.text)
            assert f.engines[0].seen[-1].body == f.chat("squeeze")
            assert "content-encoding" not in f.engines[0].seen[-1].headers
        count = f.engines[0].requests
        bomb = await send(gzip.compress(b" " * 10_000_000), "gzip")
        assert bomb.status_code == 413
        for wrong in (body, gzip.compress(body)[:-9], b""):
            assert (await send(wrong, "gzip")).status_code == 400
        unknown = await send(body, "br")
        assert unknown.status_code == 415
        assert "gzip" in unknown.headers["accept-encoding"]
        assert f.engines[0].requests == count
        assert (await f.client.get("/v1/models/")).status_code == 200
        assert (await f.client.get("/health/")).status_code == 200


def test_what_is_decompressed_is_bounded() -> None:
    bomb = gzip.compress(b"\0" * 2**26)
    with pytest.raises(ApiError) as caught:
        decompress(bomb, "gzip", 1000)
    assert caught.value.status == 413
    members = gzip.compress(b"x" * 600) * 2
    with pytest.raises(ApiError):
        decompress(members, "gzip", 1000)
    assert decompress(members, "gzip", 1200) == b"x" * 1200


async def held(f: Fleet, body: dict[str, Any]) -> "asyncio.Task[Streamed]":
    """A stream that is silent; its task, once its first heartbeat has come."""
    begun = asyncio.Event()
    task = asyncio.ensure_future(f.stream(body, begun=begun))
    await asyncio.wait_for(begun.wait(), 15)
    return task


QUIET = GatewayConfig(heartbeat_seconds=0.05)


async def test_a_silent_stream_is_kept_alive() -> None:
    """LiteLLM#14953, ollama#14420."""
    async with fleet(1, config=QUIET) as f:
        engine = f.engines[0]
        body = f.chat("word " * 100)
        prompt = tokens_of("<user>" + "word " * 100)
        engine.prefill_rate = len(prompt) / 0.5
        got = await f.stream(body)
        assert got.raw.startswith(HEARTBEAT)
        assert got.raw.count(HEARTBEAT) >= 2
        assert got.text == expected_text(prompt, 4)
        assert got.done
        assert got.response.headers["content-type"].startswith("text/event-stream")
        # A whole answer has no place for comments.
        engine.reset_cache()
        assert (await f.post(body)).json()["usage"]["completion_tokens"] == 4
        f.check()


async def test_heartbeats_can_be_turned_off() -> None:
    async with fleet(1, config=GatewayConfig(heartbeat_seconds=0)) as f:
        f.engines[0].prefill_rate = 500
        assert b":" not in (await f.stream(f.chat("word " * 100))).raw.split(b"data", 1)[0]


async def test_another_replica_answers_after_a_heartbeat_too() -> None:
    async with fleet(2, config=QUIET) as f:
        for engine in f.engines:
            engine.faults.append(Fault("status", status=500, delay=0.4))
        task = await held(f, f.chat("try again"))
        next(e for e in f.engines if not e.requests).faults.clear()
        got = await task
        assert got.error is None, got.error
        assert got.text == expected_text(tokens_of("<user>try again"), 4)
        assert got.done
        f.check()


@pytest.mark.parametrize("status", [400, 500])
async def test_after_a_heartbeat_a_failure_is_an_event(status: int) -> None:
    async with fleet(1, config=QUIET) as f:
        f.engines[0].fault = Fault("status", status=status, delay=0.4)
        got = await (await held(f, f.chat("wrong")))
        assert got.response.status_code == 200
        assert not got.done
        assert got.error is not None
        assert str(status) in got.error["message"]
        f.check()


async def test_who_waits_for_a_slot_hears_of_it() -> None:
    async with fleet(1, config=QUIET, handle={"max_inflight": 1}) as f:
        f.engines[0].decode_seconds = 0.05
        first = asyncio.ensure_future(f.stream(f.chat("first", max_tokens=10)))
        await eventually(lambda: any(f.counts()), "it runs")
        second = await f.stream(f.chat("second"))
        assert second.raw.startswith(HEARTBEAT)
        assert second.done
        assert (await first).done
        f.check()


async def test_a_replicas_heartbeats_are_no_tokens() -> None:
    """It may be tried elsewhere, its deadline runs on, and a refusal keeps its status."""
    async with fleet(2, config=GatewayConfig(first_byte_seconds=0.4)) as f:
        for engine in f.engines:
            engine.heartbeat, engine.prefill_rate = 0.02, 1000
            engine.faults.append(Fault("error"))
        task = asyncio.ensure_future(f.stream(f.chat("word " * 40)))
        await eventually(lambda: any(f.counts()), "a leg began")
        next(e for e in f.engines if not e.requests).faults.clear()
        got = await task
        assert got.error is None, got.error
        assert got.done
        assert b"ping" not in got.raw
        for engine in f.engines:
            engine.faults.clear()
            engine.fault = Fault("error", status=422)
        refused = await f.stream(f.chat("refused " * 20))
        assert refused.response.status_code == 422, refused.raw
        for engine in f.engines:
            engine.fault, engine.prefill_rate = None, 50
        late = await f.stream(f.chat("late " * 100))
        assert late.response.status_code == 504
        f.check()
