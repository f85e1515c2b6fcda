"""The APIs beside chat and completions pass through a fleet: routed, limited, counted, failed over."""

import asyncio
import hashlib
import json
from collections import deque
from typing import Any

import anthropic
import openai
import pytest
from engine import Fault, expected_text, tokens_of

from fleet import Fleet, eventually, fleet
from shoal.fleet.gateway import GatewayConfig, KeyConfig, RequestRecord


class Records:
    """An observer that keeps the records of what ended."""

    def __init__(self, f: Fleet) -> None:
        self.all: list[RequestRecord] = []
        assert f.gateway is not None
        f.gateway.observers.all.append(self)

    def on_decision(self, *args: Any) -> None: ...
    def on_leg(self, *args: Any) -> None: ...
    def on_distrust(self, *args: Any) -> None: ...

    def on_finished(self, record: RequestRecord) -> None:
        self.all.append(record)


def keys(**limits: Any) -> tuple[KeyConfig, ...]:
    return tuple(
        KeyConfig(name=name, sha256=hashlib.sha256(name.encode()).hexdigest(), **limits) for name in ("kim", "lee")
    )


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "fake", "input": "tell me", "max_output_tokens": 6},
    "/v1/messages": {"model": "fake", "messages": [{"role": "user", "content": "tell me"}], "max_tokens": 6},
}
PROMPTS = {"/v1/responses": tokens_of("tell me"), "/v1/messages": tokens_of("<user>tell me")}
TOOLS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "fake", "input": ["one", "two"]},
    "/v1/score": {"model": "fake", "text_1": "one", "text_2": ["two", "three"]},
    "/rerank": {"model": "fake", "query": "one", "documents": ["two", "three"]},
    "/v1/messages/count_tokens": {"model": "fake", "messages": [{"role": "user", "content": "count"}]},
    "/tokenize": {"model": "fake", "prompt": "some words"},
    "/detokenize": {"model": "fake", "tokens": [1, 2, 3]},
}


@pytest.mark.parametrize("path", STREAMS)
async def test_an_answer_and_a_stream_come_back_as_the_engine_wrote_them(path: str) -> None:
    async with fleet(2) as f:
        records = Records(f)
        body, prompt = STREAMS[path], PROMPTS[path]
        whole = await f.post(body, path + "/")
        assert whole.status_code == 200, whole.text
        assert expected_text(prompt, 6) in whole.text
        streamed = await f.stream(body, path)
        assert b"[DONE]" not in streamed.raw
        kinds = [line for line in streamed.raw.splitlines() if line.startswith(b"event:")]
        last = b"response.completed" if path == "/v1/responses" else b"message_stop"
        assert kinds[-1] == b"event: " + last
        assert kinds[0] in (b"event: response.created", b"event: message_start")
        deltas = "".join(
            c["delta"] if isinstance(c["delta"], str) else c["delta"].get("text") or ""
            for c in streamed.chunks
            if "delta" in c
        )
        assert deltas == expected_text(prompt, 6)
        await eventually(lambda: len(records.all) == 2, "both have ended")
        for record in records.all:
            assert (record.prompt_tokens, record.completion_tokens) == (len(prompt), 6)
            assert record.actual_hit == 0
        sent = sorted((s for e in f.engines for s in e.seen), key=lambda s: s.at)
        assert [s.body for s in sent] == [body, body | {"stream": True}], (
            "nothing is added that their APIs don't know"
        )
        f.check()


@pytest.mark.parametrize("path", STREAMS)
async def test_another_replica_answers_until_there_is_output(path: str) -> None:
    """An engine that has said that it took a request on has given no answer yet."""
    async with fleet(2) as f:
        for kind in ("status", "error", "reset"):
            first = deque([Fault(kind)])
            for engine in f.engines:
                engine.faults = first
            got = await f.stream(STREAMS[path], path)
            assert not first
            assert b"engine died" not in got.raw
            assert got.raw.count(b"response.created" if path == "/v1/responses" else b"message_start") >= 1
            assert got.raw.count(b"event: ") == 6 + (3 if path == "/v1/responses" else 6), kind
        f.check()


@pytest.mark.parametrize("path", STREAMS)
async def test_what_breaks_off_ends_with_the_apis_own_error(path: str) -> None:
    async with fleet(1) as f:
        records = Records(f)
        for kind in ("reset", "error", "end"):
            f.engines[0].faults.append(Fault(kind, after=3))
            got = await f.stream(STREAMS[path], path)
            assert got.raw.rstrip().splitlines()[-2] == b"event: error", (kind, got.raw)
            event = json.loads(got.payloads[-1])
            assert event["type"] == "error"
            assert "the stream broke off" in json.dumps(event)
        await eventually(lambda: len(records.all) == 3, "all have ended")
        assert [record.completion_tokens for record in records.all] == [3, 3, 3]
        f.check()


@pytest.mark.parametrize("path", TOOLS)
async def test_tools_without_output_pass_and_what_they_compute_is_counted(path: str) -> None:
    async with fleet(2) as f:
        records = Records(f)
        first = deque([Fault("status", status=500)])
        for engine in f.engines:
            engine.faults = first
        answer = await f.post(TOOLS[path], path)
        assert answer.status_code == 200, answer.text
        await eventually(lambda: records.all and records.all[-1].status == 200, "it has ended")
        record = records.all[-1]
        assert record.completion_tokens == 0
        computes = path in ("/v1/embeddings", "/v1/score", "/rerank")
        assert (record.prompt_tokens > 0) == computes
        assert (await f.post(TOOLS[path] | {"model": "nobody"}, path)).status_code == 404
        assert (await f.client.get(path)).status_code == 405
        f.check()


async def test_limits_and_keys_hold_for_all_of_them() -> None:
    config = GatewayConfig(keys=keys(tokens_per_minute=1000))
    async with fleet(1, config=config) as f:
        for path, body in (STREAMS | TOOLS).items():
            assert (await f.post(body, path)).status_code == 401
        auth = {"x-api-key": "kim", "anthropic-version": "2023-06-01"}
        body = STREAMS["/v1/messages"] | {"max_tokens": 400, "stream": True}
        codes = []
        for _ in range(5):
            async with f.client.stream("POST", "/v1/messages", json=body, headers=auth) as response:
                codes.append(response.status_code)
                async for _ in response.aiter_bytes():
                    pass
        assert codes[0] == 200
        assert codes[-1] == 429
        assert f.engines[0].seen[0].headers["anthropic-version"] == "2023-06-01"
        assert "x-api-key" not in f.engines[0].seen[0].headers
        refused = await f.client.post("/v1/messages", json=body, headers=auth)
        assert refused.json()["type"] == "error"
        assert (await f.client.get("/v1/models", headers=auth)).status_code == 200
        assert (await f.client.get("/v1/models", headers={"x-api-key": "no"})).status_code == 401
        assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_who_goes_on_from_a_response_comes_to_the_replica_that_keeps_it() -> None:
    async with fleet(3, config=GatewayConfig(keys=keys())) as f:
        kim, lee = {"authorization": "Bearer kim"}, {"authorization": "Bearer lee"}
        path, body = "/v1/responses", STREAMS["/v1/responses"]
        for stream in (False, True):
            first = await f.client.post(path, json=body | {"stream": stream}, headers=kim)
            replica = first.headers["x-shoal-replica"]
            identity = first.json()["id"] if not stream else None
            if identity is None:
                line = next(x for x in first.text.splitlines() if '"response.completed"' in x and "data:" in x)
                identity = json.loads(line[5:])["response"]["id"]
            await asyncio.gather(*(f.client.post(path, json=body, headers=kim) for _ in range(4)))
            for _ in range(3):
                again = await f.client.post(path, json=body | {"previous_response_id": identity}, headers=kim)
                assert again.headers["x-shoal-replica"] == replica
            other = await f.client.post(path, json=body | {"previous_response_id": identity}, headers=lee)
            assert other.status_code == 400
            assert other.json()["error"]["code"] == "previous_response_not_found"
        f.check()


async def test_a_stored_response_is_its_keys_alone() -> None:
    """Asked of the replica that keeps it and of no other; for another key there is none."""
    async with fleet(2, config=GatewayConfig(keys=keys())) as f:
        kim, lee = {"authorization": "Bearer kim"}, {"x-api-key": "lee"}
        body = STREAMS["/v1/responses"]
        made = await f.client.post("/v1/responses", json=body, headers=kim)
        path = "/v1/responses/" + made.json()["id"]
        assert (await f.client.get(path)).status_code == 401
        for method in ("GET", "DELETE"):
            refused = await f.client.request(method, path, headers=lee)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        assert (await f.client.get("/v1/responses/resp_nothing", headers=kim)).status_code == 404
        assert (await f.client.post(path, json={}, headers=kim)).status_code == 405
        assert not any(seen.path.startswith(path) for engine in f.engines for seen in engine.seen)
        answer = await f.client.get(path + "?include=x", headers=kim)
        assert answer.headers["x-shoal-replica"] == made.headers["x-shoal-replica"]
        keeper = next(e for e in f.engines if e.name == made.headers["x-shoal-replica"])
        await keeper.stop()
        gone = await f.client.get(path, headers=kim)
        assert gone.status_code == 502, gone.text
        f.check()


async def test_the_vendors_clients_understand_it() -> None:
    async with fleet(2) as f:
        async with openai.AsyncOpenAI(base_url=f.url + "/v1", api_key="x") as client:
            made = await client.embeddings.create(model="fake", input="one", encoding_format="float")
            assert made.data[0].embedding == [0.5, 0.25]
            events = [e async for e in await client.responses.create(model="fake", input="tell me", stream=True)]
            assert events[-1].type == "response.completed"
            for engine in f.engines:
                engine.fault = Fault("reset", after=2)
            stream = await client.responses.create(model="fake", input="tell me", stream=True)
            assert [e.type async for e in stream][-1] == "error"
            for engine in f.engines:
                engine.fault = None
        async with anthropic.AsyncAnthropic(base_url=f.url, api_key="x") as claude:
            ask: Any = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "tell me"}]}
            async with claude.messages.stream(**ask) as stream:
                pieces = [event.type async for event in stream]
            assert pieces[-1] == "message_stop"
            assert (await claude.messages.count_tokens(model="fake", messages=ask["messages"])).input_tokens > 0
            for engine in f.engines:
                engine.fault = Fault("reset", after=2)
            async with claude.messages.stream(**ask) as stream:
                with pytest.raises(anthropic.APIStatusError, match="broke off"):
                    await stream.get_final_message()
