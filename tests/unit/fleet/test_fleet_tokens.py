"""Tokens are counted whatever the client asks for, however the engine writes JSON, whenever the client leaves."""

import asyncio
import hashlib
import itertools
import json
from typing import Any

import pytest
from engine import Fault, tokens_of

from fleet import Fleet, eventually, fleet
from shoal.fleet.gateway import GatewayConfig, KeyConfig, RequestRecord
from shoal.fleet.gateway.body import asking_for_usage, parse
from shoal.fleet.gateway.formats import CompletionsFormat
from shoal.fleet.gateway.reading import StreamReader
from shoal.fleet.gateway.sse import without_token_ids, without_usage
from shoal.http.sse import SseSplitter, payloads

LIMIT = 2000


def keys() -> tuple[KeyConfig, ...]:
    return (KeyConfig(name="k", sha256=hashlib.sha256(b"k").hexdigest(), tokens_per_minute=LIMIT),)


AUTH = {"authorization": "Bearer k"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": None},
    {"stream_options": {}},
    {"stream_options": {"include_usage": False}},
    {"stream_options": {"include_usage": None, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
]


class Records:
    """An observer that keeps the records of what ended."""

    def __init__(self) -> None:
        self.all: list[RequestRecord] = []

    def on_decision(self, *args: Any) -> None: ...
    def on_leg(self, *args: Any) -> None: ...
    def on_distrust(self, *args: Any) -> None: ...

    def on_finished(self, record: RequestRecord) -> None:
        self.all.append(record)


async def ended(f: Fleet, body: dict[str, Any]) -> RequestRecord:
    """The record of one whole stream."""
    assert f.gateway is not None
    records = Records()
    f.gateway.observers.all.append(records)
    got = await f.stream(body)
    assert got.done, got.raw
    await eventually(lambda: records.all, "the request has ended")
    f.gateway.observers.all.remove(records)
    return records.all[0]


@pytest.mark.parametrize("spaced", [False, True])
async def test_the_engines_count_is_known_and_only_shown_to_who_asked(spaced: bool) -> None:
    async with fleet(1) as f:
        f.engines[0].spaced = spaced
        for options, extra in itertools.product(OPTIONS, ({}, {"temperature": 0})):
            body = f.chat("count me", max_tokens=7, **options, **extra)
            record = await ended(f, body)
            assert (record.prompt_tokens, record.completion_tokens) == (len(tokens_of("<user>count me")), 7)
            got = await f.stream(body)
            shown = (options.get("stream_options") or {}).get("include_usage") is True
            assert (b"usage" in got.raw) == shown, got.raw
            assert b"token_ids" not in got.raw
            if not shown:
                # What kills OpenAI's client: an event without a first choice.
                assert all(chunk["choices"] for chunk in got.chunks)
            assert len(got.text.split()) == 7
        f.check()


@pytest.mark.parametrize("whole", [False, True])
async def test_an_engine_that_counts_nothing_is_counted(whole: bool) -> None:
    async with fleet(1, handle={"returns_token_ids": False}) as f:
        f.engines[0].counts = False
        assert f.gateway is not None
        records = Records()
        f.gateway.observers.all.append(records)
        body = f.chat("word " * 40, max_tokens=30)
        if whole:
            assert (await f.post(body)).status_code == 200
        else:
            assert (await f.stream(body)).done
        await eventually(lambda: records.all, "the request has ended")
        record = records.all[0]
        assert 15 <= record.completion_tokens <= 40
        assert 40 <= record.prompt_tokens <= 90


@pytest.mark.parametrize("how", ["include_usage false", "leaves early", "spaces", "counts nothing"])
async def test_a_token_limit_is_not_walked_around(how: str) -> None:
    """7,000 tokens were had on a limit of 2,000."""
    async with fleet(1, config=GatewayConfig(keys=keys())) as f:
        engine = f.engines[0]
        engine.decode_seconds = 0.0005
        engine.spaced, engine.counts = how == "spaces", how != "counts nothing"
        had = refused = 0
        for i in range(12):
            body = f.chat(f"{i}", max_tokens=500, stream=True)
            if how == "include_usage false":
                body["stream_options"] = {"include_usage": False}
            before = engine.generated
            async with f.client.stream("POST", "/v1/chat/completions", json=body, headers=AUTH) as response:
                if response.status_code == 429:
                    refused += 1
                    continue
                assert response.status_code == 200
                seen = 0
                async for piece in response.aiter_bytes():
                    seen += piece.count(b'"content"')
                    if how == "leaves early" and seen > 450:
                        break
            had += engine.generated - before
            await eventually(lambda: f.gateway is not None and f.gateway.live == 0, "the request has ended")
        assert refused, f"{had} tokens"
        assert had <= LIMIT + 600, had


async def test_what_the_client_got_of_a_broken_stream_is_counted_and_what_it_never_got_is_not() -> None:
    async with fleet(1, handle={"returns_token_ids": False}) as f:
        assert f.gateway is not None
        records = Records()
        f.gateway.observers.all.append(records)
        f.engines[0].faults.append(Fault("reset", after=5))
        await f.stream(f.chat("broken", max_tokens=20))
        f.engines[0].fault = Fault("status", status=400)
        assert (await f.post(f.chat("refused"))).status_code == 400
        f.engines[0].fault = Fault("status", status=500)
        assert (await f.post(f.chat("failed"))).status_code == 502
        await eventually(lambda: len(records.all) == 3, "all have ended")
        assert [r.completion_tokens for r in records.all] == [5, 0, 0]
        assert [r.prompt_tokens for r in records.all][1:] == [0, 0]


@pytest.mark.parametrize("resumes", [False, True])
async def test_a_continued_stream_counts_once(resumes: bool) -> None:
    async with fleet(2, handle={"resumes": resumes}) as f:
        for engine in f.engines:
            engine.decode_seconds = 0.002
            engine.faults.append(Fault("reset", after=5))
        assert f.gateway is not None
        records = Records()
        f.gateway.observers.all.append(records)
        task = asyncio.ensure_future(f.stream(f.chat("a story", max_tokens=20, temperature=0)))
        await eventually(lambda: any(f.counts()), "a leg began")
        next(e for e in f.engines if not e.requests).faults.clear()
        assert (await task).done
        await eventually(lambda: records.all, "the request has ended")
        record = records.all[0]
        assert record.continued == 1
        assert (record.prompt_tokens, record.completion_tokens) == (len(tokens_of("<user>a story")), 20)


EVENTS = [
    {"id": "1", "choices": [{"index": 0, "delta": {"content": 'say "usage": {"x": 1} and ,"token_ids":[1] '}}]},
    {"id": "1", "usage": None, "choices": [{"index": 0, "token_ids": [5, 6], "delta": {"content": "é"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}},
    {"usage": {"prompt_tokens": 3, "completion_tokens": 2}, "choices": []},
]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : "), (",\t", ":  ")])
@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n"])
def test_what_was_asked_for_goes_whatever_the_spacing(separators: tuple[str, str], ending: bytes) -> None:
    raw = b"".join(b"data: " + json.dumps(e, separators=separators).encode() + ending for e in EVENTS)
    raw += b"data: [DONE]" + ending
    splitter, out = SseSplitter(), b""
    reader = StreamReader(CompletionsFormat())
    for at in range(0, len(raw), 7):
        if events := splitter.feed(raw[at : at + 7]):
            out += without_usage(without_token_ids(reader.read(events)))
    assert reader.done
    assert reader.usage is not None
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (3, 2)
    *chunks, done = payloads(out)
    assert done == b"[DONE]"
    left = [json.loads(chunk) for chunk in chunks]
    expected = [json.loads(json.dumps(e)) for e in EVENTS[:3]]
    for event in expected:
        event.pop("usage", None)
    del expected[1]["choices"][0]["token_ids"]
    assert left == expected


def test_a_request_is_changed_in_its_stream_options_only() -> None:
    body = b'{ "model":"m", "messages": [{"role":"user","content":"\\u00e9 1.10"}],"temperature":1.10,"stream":true'
    for options in (
        b'{"include_usage":false}',
        b"null",
        b'{"include_usage":null,"continuous_usage_stats":true}',
        b"{}",
    ):
        asked = asking_for_usage(parse("chat", body + b',"stream_options":' + options + b"}"))
        assert json.loads(asked)["stream_options"] == {"include_usage": True}
        assert b'"\\u00e9 1.10"' in asked
        assert b'"temperature":1.10' in asked
    wrong = body + b',"stream_options":5}'
    assert asking_for_usage(parse("chat", wrong)) == wrong, "the engine says what is wrong"
    assert json.loads(asking_for_usage(parse("chat", body + b"}")))["stream_options"] == {"include_usage": True}
