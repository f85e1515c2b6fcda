"""Served names, aliases and ids that engines list: what clients ask for reaches the engine under its own name."""

import asyncio
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from engine import FakeEngine, Fault, expected_text, tokens_of
from service_kit import body, client, engines, served, write

from fleet import eventually, fleet
from shoal.fleet.adapters import ModelCard
from shoal.fleet.adapters.listing import choose_card
from shoal.fleet.config_file import load_config
from shoal.fleet.gateway.names import Names
from shoal.fleet.service import FleetService
from shoal.http.listening import bind
from shoal.policy.outcomes import LegFailed

TEXT = expected_text(tokens_of("abcdefgh"), 4)


def cards(*ids: str) -> list[ModelCard]:
    return [ModelCard(id=name) for name in ids]


@pytest.mark.parametrize(
    ("listed", "names", "chosen"),
    [
        (["org/name"], ["name"], "org/name"),
        (["name"], ["org/name"], "name"),
        (["/models/Name.gguf"], ["name"], "/models/Name.gguf"),
        (["a", "org/b", "b"], ["b"], "b"),
        (["a", "org/b"], ["b", "a"], "a"),
        (["org/a", "org/b"], ["x", "B"], "org/b"),
    ],
)
def test_a_listed_model_is_chosen(listed: list[str], names: list[str], chosen: str) -> None:
    assert choose_card(cards(*listed), names).id == chosen


@pytest.mark.parametrize(
    ("listed", "names", "says"),
    [
        (["qwen"], ["llama"], "doesn't serve 'llama'; it serves 'qwen'"),
        (["one/m", "two/m"], ["m"], "several models that 'm' may mean: 'one/m', 'two/m'"),
        ([str(n) for n in range(50)], ["m"], "'9', …"),
    ],
)
def test_an_unclear_list_is_shown(listed: list[str], names: list[str], says: str) -> None:
    with pytest.raises(LegFailed) as caught:
        choose_card(cards(*listed), names)
    assert says in str(caught.value)
    assert "`model`" in str(caught.value)


def test_only_the_field_at_the_top_is_translated() -> None:
    names = Names("asked", "org/served")
    schema = {"type": "object", "properties": {"model": {"const": "asked"}}}
    request = {"messages": [{"content": '"model": "asked"'}], "tools": [schema], "model": "asked", "x": 1.10}
    sent = names.request(json.dumps(request).encode())
    assert json.loads(sent) == request | {"model": "org/served"}
    answer = {"id": "1", "model": "org/served", "choices": [{"message": {"content": 'say "model":"org/served"'}}]}
    assert json.loads(names.answer(json.dumps(answer).encode())) == answer | {"model": "asked"}
    event = b"data: " + json.dumps(answer).encode() + b"\n\n"
    assert json.loads(names.events(event * 2)[6:].split(b"\n\n")[0]) == answer | {"model": "asked"}
    assert names.events(event * 2).count(b'"model": "asked"') == 2
    assert names.answer(b"not json") == b"not json"
    quoted = Names('a"b', "org/served")
    assert json.loads(quoted.answer(json.dumps(answer).encode()))["model"] == 'a"b'


async def test_an_attached_engine_is_asked_by_its_own_name(tmp_path: Path) -> None:
    """An engine that serves `org/name` and is known here as `name` gets ready, whole answers and streams work."""
    async with engines(1) as found:
        found[0].model = "org/fake"
        path = write(tmp_path / "fleet.yaml", found, pool={"model": "fake", "aliases": ["default", "org/fake"]})
        async with served(path) as (_, url), client(url) as asking:
            assert {m["id"] for m in (await asking.get("/v1/models")).json()["data"]} == {
                "fake", "default", "org/fake"}  # fmt: skip
            for name in ("fake", "default", "org/fake"):
                whole = (await asking.post("/v1/completions", json=body(model=name))).json()
                assert (whole["model"], whole["choices"][0]["text"]) == (name, TEXT)
                raw = await _streamed(asking, body(model=name, stream=True))
                assert {chunk["model"] for chunk in raw} == {name}
                assert "".join(c["text"] for chunk in raw for c in chunk["choices"]) == TEXT
            assert {seen.body["model"] for seen in found[0].seen} == {"org/fake"}
            assert (await asking.post("/v1/completions", json=body(model="other"))).status_code == 404


async def _streamed(asking: Any, asked: dict[str, Any]) -> list[dict[str, Any]]:
    async with asking.stream("POST", "/v1/completions", json=asked) as response:
        lines = [line async for line in response.aiter_lines()]
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def test_a_continued_stream_keeps_the_name_that_was_asked_for() -> None:
    """Both engines know the model by another name than the client."""
    handle = {"models": ("nick",), "engine_model": "fake"}
    async with fleet(2, handle=handle) as f:
        assert f.gateway is not None
        for engine in f.engines:
            engine.faults.append(Fault("reset", after=3))
        asked = f.chat("hello", model="nick", max_tokens=8, temperature=0)
        streamed = await f.stream(asked)
        assert streamed.done
        assert {chunk["model"] for chunk in streamed.chunks} == {"nick"}
        f.check()


async def test_an_engine_whose_request_ids_are_uuids_gets_no_others() -> None:
    """llama-cpp-python's server answers 400 to an x-request-id that is no UUID."""
    async with fleet(1, handle={"any_request_id": False}) as f:
        await f.post(f.chat())
        await f.post(f.chat(), headers={"x-request-id": "my-own"})
        own = "0b6cbfd2-7d5a-4f6c-9c1e-3c4f5a6b7c8d"
        answer = await f.post(f.chat(), headers={"x-request-id": own})
        assert answer.headers["x-request-id"] == own
        ids = [seen.headers.get("x-request-id") for seen in f.engines[0].seen]
        assert ids[1:] == [None, own]
        assert str(uuid.UUID(ids[0])) == ids[0]
    async with fleet(1) as f:
        answer = await f.post(f.chat(), headers={"x-request-id": "my-own"})
        assert answer.headers["x-request-id"] == "my-own"
        assert f.engines[0].seen[0].headers["x-request-id"] == "my-own"


class Locked(FakeEngine):
    """Demands a key."""

    async def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        self._json(writer, 401, {"error": {"message": "no key"}})
        await writer.drain()


async def test_an_attached_replica_says_why_it_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Dead URL, key missing, another model there, URL with /v1: said once, and what to change."""
    caplog.set_level(logging.WARNING, logger="shoal.fleet")
    locked = await Locked("locked").start()
    async with engines(3) as found:
        found[2].model = "another"
        dead = await FakeEngine("dead").start()
        await dead.stop()
        path = tmp_path / "fleet.yaml"
        urls = [found[0].url + "/v1/", dead.url, locked.url, found[2].url]
        pools = [{"name": "p", "model": "fake", "engine": "openai", "urls": urls}]
        path.write_text(json.dumps({"pools": pools, "supervisor": {"log_dir": str(tmp_path / "logs")}}))
        service = FleetService(load_config(path), cores=1)
        running = asyncio.ensure_future(service.run(bind("127.0.0.1", 0)))
        said = lambda: [r.getMessage() for r in caplog.records if "isn't ready" in r.getMessage()]  # noqa: E731
        try:
            await eventually(lambda: len(said()) >= 3, "all three are said", 20)
            assert service.supervisor.replicas[0].url == found[0].url
            await eventually(lambda: service.supervisor.replicas[0].state == "ready", "/v1 was taken off", 20)
            await asyncio.sleep(1.0)
            (first,) = (line for line in said() if "p-1" in line)
            assert "no connection to" in first
            assert "is it running, and is the URL right?" in first
            (second,) = (line for line in said() if "p-2" in line)
            assert "demands a key (401): set api_key_env" in second
            (third,) = (line for line in said() if "p-3" in line)
            assert "doesn't serve 'fake'; it serves 'another'" in third
            found[2].model = "fake"
            await eventually(lambda: "p-3 is ready" in caplog.text, "it says that it is well", 20)
        finally:
            service.stop()
            await running
            await locked.stop()


async def test_another_model_at_an_old_url_is_noticed(tmp_path: Path) -> None:
    """An attached engine goes away and comes back with another name for its model: it is asked by that."""
    async with engines(1) as found:
        settings = {"health": {"check_seconds": 0.1, "failures": 1}}
        path = write(tmp_path / "fleet.yaml", found, **settings)
        async with served(path) as (service, url), client(url) as asking:
            assert (await asking.post("/v1/completions", json=body())).status_code == 200
            await found[0].stop()
            replica = service.supervisor.replicas[0].name
            await eventually(lambda: not service.registry.get(replica).state.healthy, "it is gone", 20)
            await asyncio.sleep(1.1)
            found[0].model = "org/fake"
            await found[0].start()
            handle = lambda: service.registry.get(replica).handle  # noqa: E731
            await eventually(lambda: handle().engine_model == "org/fake", "it is asked anew", 20)
            answer = await asking.post("/v1/completions", json=body())
            assert (answer.status_code, answer.json()["model"]) == (200, "fake")
