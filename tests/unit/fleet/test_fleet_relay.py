"""A request through the gateway and back, on real sockets."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from engine import Fault, expected_text, tokens_of

from fleet import Fleet, eventually, fleet
from shoal.fleet.gateway import GatewayConfig


async def test_an_answer_comes_back_byte_for_byte() -> None:
    async with fleet(2) as f:
        answer = await f.post(f.chat("hello there", max_tokens=5))
        assert answer.status_code == 200
        body = answer.json()
        assert body["choices"][0]["message"]["content"] == expected_text(tokens_of("<user>hello there"), 5)
        assert body["usage"]["completion_tokens"] == 5
        served = next(e for e in f.engines if e.requests)
        assert answer.headers["x-shoal-replica"] == served.name
        assert "default:" in answer.headers["x-shoal-reason"]
        assert answer.headers["x-shoal-hit"] == "0"
        # Nothing was serialized anew: what we sent is what the engine got.
        assert served.seen[0].body == f.chat("hello there", max_tokens=5)
        f.check()


@pytest.mark.parametrize("ids", [True, False])
async def test_a_connection_that_breaks_after_the_last_event_costs_nothing(ids: bool) -> None:
    async with fleet(2, handle={"returns_token_ids": ids}) as f:
        for engine in f.engines:
            piece = engine._piece

            def last(writer: asyncio.StreamWriter, data: bytes, piece: Any = piece) -> None:
                piece(writer, data)
                if b"[DONE]" in data:
                    writer.transport.abort()

            engine._piece = last  # type: ignore[method-assign]
        got = await f.stream(f.chat("tell me", max_tokens=6, temperature=0))
        assert got.text == expected_text(tokens_of("<user>tell me"), 6)
        assert got.payloads.count(b"[DONE]") == 1
        assert got.done
        assert got.error is None
        f.check()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_comes_back_whole_and_without_what_was_added(path: str) -> None:
    async with fleet(2) as f:
        body = f.chat("tell me", max_tokens=6, temperature=0)
        if path == "/v1/completions":
            body = {"model": "fake", "prompt": "tell me", "max_tokens": 6, "temperature": 0}
        got = await f.stream(body, path)
        prompt = tokens_of("<user>tell me" if "messages" in body else "tell me")
        assert got.text == expected_text(prompt, 6)
        assert got.done
        assert got.finish == "length"
        assert b"token_ids" not in got.raw
        assert b"usage" not in got.raw
        f.check()


async def test_usage_is_there_when_asked_for() -> None:
    async with fleet(1) as f:
        got = await f.stream(f.chat(stream_options={"include_usage": True}))
        assert got.chunks[-1]["usage"]["completion_tokens"] == 4
        assert got.done


@pytest.mark.parametrize("kind", ["reset", "garbage", "hang", "end", "error"])
async def test_a_broken_greedy_stream_goes_on_elsewhere_as_if_nothing_had_been(kind: str) -> None:
    async with fleet(2, monitored=True) as f:
        for engine in f.engines:
            engine.faults.append(Fault(kind, after=5))
            engine.decode_seconds = 0.002
        # Only the first leg breaks: whoever takes over has none left.
        body = f.chat("a story", max_tokens=20, temperature=0, stream_options={"include_usage": True})
        task = asyncio.ensure_future(f.stream(body))
        await eventually(lambda: any(f.counts()), "a leg began")
        next(e for e in f.engines if not e.requests).faults.clear()
        got = await task
        assert got.error is None, got.error
        assert got.text == expected_text(tokens_of("<user>a story"), 20)
        assert got.done
        assert got.finish == "length"
        assert len({chunk["id"] for chunk in got.chunks}) == 1
        assert got.chunks[-1]["usage"]["completion_tokens"] == 20
        assert got.chunks[-1]["usage"]["prompt_tokens"] == len(tokens_of("<user>a story"))
        f.check()


async def test_a_seeded_stream_goes_on_where_the_engine_can_resume() -> None:
    async with fleet(2, handle={"resumes": True}) as f:
        for engine in f.engines:
            engine.faults.append(Fault("reset", after=3))
        body = f.chat("dice", max_tokens=10, temperature=1.0, seed=7, stop=["never"])
        task = asyncio.ensure_future(f.stream(body))
        await eventually(lambda: any(f.counts()), "a leg began")
        other = next(e for e in f.engines if not e.requests)
        other.faults.clear()
        got = await task
        assert got.text == expected_text(tokens_of("<user>dice"), 10)
        assert got.done
        resumed = other.seen[0].body
        assert len(resumed["resume_token_ids"]) == 3
        assert resumed["seed"] == 7


async def test_a_sampled_stream_without_a_seed_is_given_one_to_go_on_with() -> None:
    async with fleet(2, handle={"resumes": True}) as f:
        for engine in f.engines:
            engine.faults.append(Fault("reset", after=3))
        first, second = (asyncio.ensure_future(f.stream(f.chat(text, max_tokens=10))) for text in ("dice", "again"))
        await eventually(lambda: sum(f.counts()) >= 2, "the legs began")
        for engine in f.engines:
            engine.faults.clear()
        for got in await asyncio.gather(first, second):
            assert got.done, got.error
        seeds: dict[str, set[int]] = {}
        for engine in f.engines:
            for seen in engine.seen:
                seeds.setdefault(seen.body["messages"][0]["content"], set()).add(seen.body["seed"])
        assert len(seeds["dice"]) == len(seeds["again"]) == 1, "all legs of a request draw alike"
        assert seeds["dice"] != seeds["again"]
        whole = await f.post(f.chat("whole", temperature=0.5))
        assert whole.status_code == 200
        assert not any("seed" in s.body for e in f.engines for s in e.seen if not s.body.get("stream"))


async def test_a_stream_that_cannot_go_on_says_so() -> None:
    async with fleet(2) as f:
        for engine in f.engines:
            engine.fault = Fault("reset", after=3)
        got = await f.stream(f.chat("random", max_tokens=10, temperature=0.8))
        assert got.response.status_code == 200
        assert not got.done
        assert got.error is not None
        assert got.error["code"] == "stream_broken"
        f.check()


async def test_the_client_is_told_what_is_wrong_with_its_request() -> None:
    async with fleet(1) as f:
        post = f.client.post
        path = "/v1/chat/completions"
        json_type = {"content-type": "application/json"}
        assert (await post(path, content=b"{", headers=json_type)).status_code == 400
        assert (await post(path, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
        answer = await post(path, json={"model": 5, "messages": []})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "model"
        answer = await post(path, json=f.chat(model="other"))
        assert answer.status_code == 404
        assert (await f.client.get(path)).status_code == 405
        assert (await f.client.get("/nowhere")).status_code == 404
        models = (await f.client.get("/v1/models")).json()
        assert [m["id"] for m in models["data"]] == ["fake"]
        deep = b'{"model":"fake","messages":' + b"[" * 5000 + b"]" * 5000 + b"}"
        assert (await post(path, content=deep, headers=json_type)).status_code < 500
        assert json.loads((await f.client.get("/ready")).content)["status"] == "ready"


async def test_a_whole_answer_may_take_longer_than_the_first_byte_of_a_stream() -> None:
    config = GatewayConfig(first_byte_seconds=0.1, answer_seconds=20)
    async with fleet(1, config=config) as f:
        f.engines[0].decode_seconds = 0.05
        answer = await f.post(f.chat("long", max_tokens=8))
        assert answer.status_code == 200, answer.text
        f.engines[0].fault = Fault("hang")
        late = await f.stream(f.chat("never"))
        assert late.response.status_code == 504
        f.check()


async def test_a_whole_answer_has_a_deadline_of_its_own() -> None:
    async with fleet(1, config=GatewayConfig(answer_seconds=0.2)) as f:
        f.engines[0].decode_seconds = 0.1
        assert (await f.post(f.chat("long", max_tokens=100))).status_code == 504
        await eventually(lambda: f.engines[0].disconnects == 1, "the engine may stop")
        f.check()


def mixed(f: Fleet) -> None:
    """e0 is an engine of ours, e1 another one with the same model."""
    assert f.registry is not None
    for name, weights, resumes in (("e0", "shoal|m", True), ("e1", "vllm|m", False)):
        replica = f.registry.get(name)
        replica.handle = replace(replica.handle, weights=weights, resumes=resumes)
        replica.state.weights = weights


@pytest.mark.parametrize("first", ["e0", "e1"])
@pytest.mark.parametrize("allowed", [False, True])
async def test_a_stream_goes_on_at_another_engine_only_where_that_is_allowed(first: str, allowed: bool) -> None:
    async with fleet(2, config=GatewayConfig(continue_across_engines=allowed)) as f:
        mixed(f)
        assert f.registry is not None
        f.engines[int(first[1])].fault = Fault("reset", after=3)
        other = f.registry.get("e1" if first == "e0" else "e0")
        other.state.draining = True
        task = asyncio.ensure_future(f.stream(f.chat("a story", max_tokens=12, temperature=0)))
        await eventually(lambda: sum(f.counts()) == 1, "it runs")
        other.state.draining = False
        got = await task
        if allowed:
            assert got.error is None, got.error
            assert got.text == expected_text(tokens_of("<user>a story"), 12)
            sent = f.engines[int(other.name[1])].seen[0].body
            assert ("resume_token_ids" in sent) == (other.name == "e0")
        else:
            assert not f.engines[int(other.name[1])].seen
        f.check()


async def test_a_seeded_stream_never_goes_on_at_another_engine() -> None:
    async with fleet(2, config=GatewayConfig(continue_across_engines=True)) as f:
        mixed(f)
        for engine in f.engines:
            engine.fault = Fault("reset", after=3)
        for seed in range(4):
            await f.stream(f.chat("dice", max_tokens=12, temperature=1.0, seed=seed))
        asked = [s.body for s in f.engines[1].seen]
        assert all("messages" in body and "resume_token_ids" not in body for body in asked), "begun there"
        assert sum("resume_token_ids" in s.body for s in f.engines[0].seen) > 0
        f.check()
