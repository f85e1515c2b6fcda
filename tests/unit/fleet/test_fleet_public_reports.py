"""Reports of users from the trackers of other gateways, each tried as it was reported; tests name the thread."""

import asyncio
import json
from typing import Any

import pytest
from engine import Fault, expected_text, tokens_of

from fleet import Fleet, eventually, fleet

APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
    "/v1/responses": {"model": "fake", "input": "x", "max_output_tokens": 4},
    "/v1/messages": {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
}


async def post_all(f: Fleet, count: int, **fields: Any) -> list[int]:
    """The statuses of requests one after the other."""
    return [(await f.post(f.chat(str(i), **fields))).status_code for i in range(count)]


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_overloaded_replica_costs_no_request(status: int, stream: bool) -> None:
    """free-coding-models#148: 529 went to the client; voidllm#184: so did 429; agentgateway#1500: without
    Retry-After, which many servers leave out.
    """
    async with fleet(2, monitored=True) as f:
        f.engines[0].fault = Fault("status", status=status)
        assert set(await post_all(f, 6, stream=stream)) == {200}
        assert f.counts()[1] == 6
        f.engines[0].fault = None
        f.check()


async def test_overload_of_all_is_told_with_when_to_come_back() -> None:
    """llm-d-async#122: the pause that a server asks for was not passed on."""
    async with fleet(2) as f:
        for engine in f.engines:
            engine.fault = Fault("status", status=429, headers={"retry-after": "7"})
        answer = await f.post(f.chat("hello"))
        assert answer.status_code in (429, 503)
        assert 1 <= int(answer.headers["retry-after"]) <= 7
        assert answer.json()["error"]["message"]
        f.check()


@pytest.mark.parametrize("kind", ["reset", "end", "garbage"])
@pytest.mark.parametrize("path", APIS)
async def test_a_stream_without_a_payload_is_no_answer(kind: str, path: str) -> None:
    """litellm#33222, cliproxyapi#4296: a connection that broke off before the first payload became an empty 200."""
    async with fleet(1) as f:
        f.engines[0].fault = Fault(kind, headed=True)
        got = await f.stream(APIS[path], path)
        assert got.response.status_code >= 500 or b"event: error" in got.raw or got.error is not None, got.raw
        assert not got.done
        assert not got.text
    async with fleet(2) as f:
        for engine in f.engines:
            engine.faults.append(Fault(kind, headed=True))
        f.engines[1].faults.clear()
        for _ in range(3):
            got = await f.stream(APIS[path], path)
            assert got.response.status_code == 200, got.raw
            assert b"error" not in got.raw
        f.check()


async def test_the_status_of_a_refused_stream_is_the_replicas() -> None:
    """inference-gateway#578: an error in answer to a stream's request came as an empty 200 event stream."""
    async with fleet(1) as f:
        f.engines[0].fault = Fault("status", status=400)
        answer = await f.post(f.chat("hello", stream=True), headers={"accept": "text/event-stream"})
        assert answer.status_code == 400
        assert "json" in answer.headers["content-type"]
        assert answer.json()["error"]["message"]
        f.check()


@pytest.mark.parametrize("path", APIS)
async def test_a_stream_that_breaks_off_ends_as_its_api_ends_errors(path: str) -> None:
    """talon#254: streams that broke off just stopped, and clients waited for the API's last event."""
    async with fleet(1) as f:
        f.engines[0].faults.append(Fault("reset", after=2))
        got = await f.stream(APIS[path] | {"temperature": 1.0}, path)
        last = json.loads([payload for payload in got.payloads if payload != b"[DONE]"][-1])
        if path == "/v1/messages":
            assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        elif path == "/v1/responses":
            assert last["type"] in ("error", "response.failed")
        else:
            assert last["error"]["message"]
            assert not got.done
        f.check()


async def test_every_endpoint_asks_the_replica_by_its_own_name() -> None:
    """llm-rosetta#238: an alias was translated in chat and sent on as it was in embeddings."""
    others = {
        "/v1/embeddings": {"input": "x"},
        "/tokenize": {"prompt": "x"},
        "/v1/score": {"text_1": "x", "text_2": "y"},
    }
    others |= {"/v1/completions": {"prompt": "x"}, "/rerank": {"query": "x", "documents": ["y"]}}
    async with fleet(1, handle={"models": ("nick",), "engine_model": "fake"}) as f:
        for path, asked in (APIS | others).items():
            answer = await f.post(asked | {"model": "nick"}, path)
            assert answer.status_code == 200, (path, answer.text)
            assert answer.json().get("model", "nick") == "nick", path
        assert {seen.body["model"] for seen in f.engines[0].seen} == {"fake"}
        f.check()


async def test_a_replica_that_hangs_holds_up_no_other() -> None:
    """production-stack#749: requests to a backend that hung kept those to the others from being answered."""
    async with fleet(2) as f:
        f.engines[0].fault = Fault("hang")
        hanging = [asyncio.ensure_future(f.post(f.chat(f"h{i}", max_tokens=2))) for i in range(20)]
        await eventually(lambda: f.engines[0].requests, "one hangs")
        async with asyncio.timeout(10):
            while sum(task.done() for task in hanging) < 10:  # noqa: ASYNC110 (tasks have no common event)
                await asyncio.sleep(0.01)
        assert all(task.result().status_code == 200 for task in hanging if task.done())
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        registry = f.registry
        assert registry is not None
        await eventually(lambda: not registry.ledger.live(), "those that hung are ended", 5)
        f.check()


@pytest.mark.parametrize("path", APIS)
async def test_half_an_emoji_is_the_clients_error(path: str) -> None:
    """colibri#1589: a string cut within an emoji was a fault of the server; the replica refuses it here."""
    async with fleet(1) as f:
        body = json.dumps(APIS[path]).replace('"x"', '"a \\ud83d"').encode()
        answer = await f.client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500
        f.check()


async def test_a_client_that_leaves_a_whole_answer_ends_it_at_the_replica() -> None:
    """unsloth#10096, atom#1562: requests without streaming were computed to the end for nobody."""
    async with fleet(1) as f:
        f.engines[0].decode_seconds = 0.05
        task = asyncio.ensure_future(f.post(f.chat("hello", max_tokens=400)))
        await eventually(lambda: f.engines[0].running, "the replica works")
        task.cancel()
        await eventually(lambda: f.engines[0].disconnects and not f.engines[0].running, "it has ended", 5)
        assert f.engines[0].completed == 0
        again = (await f.post(f.chat("again"))).json()["choices"][0]["message"]["content"]
        assert again == expected_text(tokens_of("<user>again"), 4)
        f.check()
