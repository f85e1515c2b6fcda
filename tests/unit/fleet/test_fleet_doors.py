"""Keys, limits, logs, drain and admission at the gateway."""

import asyncio
import hashlib
import json
import logging
from pathlib import Path

import httpx
import pytest

from fleet import eventually, fleet
from shoal.fleet.gateway import GatewayConfig, KeyConfig
from shoal.fleet.gateway.logs import PromptLog
from shoal.fleet.gateway.pages import Page
from shoal.policy.admission import AdmissionConfig

SECRET = "sk-very-secret-key-of-alice-0001"


def key(name: str, secret: str, **fields: object) -> KeyConfig:
    return KeyConfig(name=name, sha256=hashlib.sha256(secret.encode()).hexdigest(), **fields)  # type: ignore[arg-type]


def auth(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_only_keys_come_in_and_only_to_their_models(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = (key("alice", SECRET), key("bob", "bobs-key", models=("other",)))
    async with fleet(1, config=GatewayConfig(keys=keys, access_log=True)) as f:
        path = "/v1/chat/completions"
        assert (await f.client.post(path, json=f.chat())).status_code == 401
        for wrong in ("nope", SECRET[:-1], SECRET + "x"):
            assert (await f.client.post(path, json=f.chat(), headers=auth(wrong))).status_code == 401
        assert (await f.client.get("/v1/models")).status_code == 401
        assert (await f.client.get("/health")).status_code == 200
        assert (await f.client.post(path, json=f.chat(), headers=auth(SECRET))).status_code == 200
        hidden = await f.client.post(path, json=f.chat(), headers=auth("bobs-key"))
        unknown = await f.client.post(path, json=f.chat(model="never"), headers=auth("bobs-key"))
        assert hidden.status_code == unknown.status_code == 404
        assert (await f.client.get("/v1/models", headers=auth("bobs-key"))).json()["data"] == []
        assert "authorization" not in f.engines[0].seen[0].headers, "the engine doesn't learn the client's key"
        # httpx writes its own debug lines; ours are what counts.
        ours = "".join(r.getMessage() for r in caplog.records if r.name.startswith("shoal"))
        assert '"key":"alice"' in ours
        assert SECRET not in ours
        assert "bobs-key" not in ours
        assert SECRET not in repr(f.gateway.config) if f.gateway else True


async def test_scopes_of_keys() -> None:
    """What shows all clients' doings has a scope of its own, which ordinary keys lack."""
    keys = (
        key("user", "u"),
        key("watch", "w", scopes=("observe",)),
        key("admin", "a", scopes=("generate", "observe")),
    )
    async with fleet(1, config=GatewayConfig(keys=keys)) as f:
        assert f.gateway is not None

        async def page(scope: object) -> Page:
            return Page(b"{}")

        f.gateway.pages.add("/metrics", page, scope="observe")

        async def statuses(*paths: str) -> list[list[int]]:
            asking = f.client
            return [
                [(await asking.get(path, headers=auth(secret))).status_code for path in paths]
                + [(await asking.post("/v1/chat/completions", json=f.chat(), headers=auth(secret))).status_code]
                for secret in ("u", "w", "a", "wrong")
            ]

        assert await statuses("/metrics", "/v1/models") == [
            [403, 200, 200], [200, 200, 403], [200, 200, 200], [401, 401, 401]]  # fmt: skip
        refused = (await f.client.get("/metrics", headers=auth("u"))).json()["error"]
        assert (refused["code"], refused["type"]) == ("missing_scope", "permission_error")
        assert "'observe'" in refused["message"]


async def test_a_key_is_compared_with_every_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.fleet.gateway import keys as module

    compared = []
    real = module.hmac.compare_digest
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
    clients = module.Clients((key("a", "one"), key("b", "two"), key("c", "three")))
    for secret in ("one", "three"):
        compared.clear()
        clients.identify(f"Bearer {secret}".encode())
        assert len(compared) == 3, "no earlier end for an early match"


async def test_rates_are_limited_by_key() -> None:
    keys = (key("slow", "s", requests_per_minute=2), key("wordy", "w", tokens_per_minute=300))
    async with fleet(1, config=GatewayConfig(keys=keys)) as f:
        path = "/v1/chat/completions"
        codes = [(await f.client.post(path, json=f.chat(), headers=auth("s"))).status_code for _ in range(3)]
        assert codes == [200, 200, 429]
        refused = await f.client.post(path, json=f.chat(), headers=auth("s"))
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        long = f.chat("word " * 200)
        first = await f.client.post(path, json=long, headers=auth("w"))
        second = await f.client.post(path, json=long, headers=auth("w"))
        assert (first.status_code, second.status_code) == (200, 429)


async def test_large_and_slow_bodies_are_refused() -> None:
    async with fleet(1, config=GatewayConfig(max_body_bytes=2000, body_seconds=0.2)) as f:
        assert (await f.post(f.chat("x" * 3000))).status_code == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", int(f.url.rsplit(":", 1)[1]))
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.read(300), 10)
        assert b" 408 " in answer
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        writer.close()
        assert sum(f.counts()) == 0


async def test_the_prompt_log_is_redacted(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    config = GatewayConfig(prompt_log=str(file), redact=(r"Project \w+",))
    async with fleet(1, config=config) as f:
        text = f"mail bob@example.com, key {SECRET}, card 4111 1111 1111 1111, Project Nautilus, keep this"
        assert (await f.post(f.chat(text))).status_code == 200
    line = json.loads(file.read_text().splitlines()[0])
    for private in ("bob@example.com", SECRET, "4111", "Nautilus"):
        assert private not in line["body"]
    assert "keep this" in line["body"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_full_disk_costs_lines_and_no_requests() -> None:
    from shoal.fleet.gateway.record import RequestRecord

    log = PromptLog("/dev/full")
    for _ in range(3):
        log.add(RequestRecord("id", "/v1/completions", "POST", 0.0), b"{}")
    log.close()
    assert log.lost > 0


async def test_draining_ends_what_runs_and_takes_nothing_new() -> None:
    async with fleet(1) as f:
        assert f.gateway is not None
        f.engines[0].decode_seconds = 0.02
        running = asyncio.ensure_future(f.stream(f.chat("run", max_tokens=15)))
        await eventually(lambda: f.engines[0].generated > 1, "it runs")
        drain = asyncio.ensure_future(f.gateway.drain(5))
        await eventually(lambda: f.gateway is not None and f.gateway.draining, "it drains")
        refused = await f.post(f.chat("new"))
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert (await running).done
        assert await drain == 0


async def test_a_drain_that_is_over_ends_streams_with_an_error() -> None:
    async with fleet(1) as f:
        assert f.gateway is not None
        f.engines[0].decode_seconds = 0.05
        running = asyncio.ensure_future(f.stream(f.chat("run", max_tokens=500)))
        await eventually(lambda: f.engines[0].generated > 1, "it runs")
        assert await f.gateway.drain(0.1) == 1
        got = await running
        assert not got.done
        assert got.error is not None
        assert got.error["code"] == "shutting_down"
        await eventually(lambda: f.engines[0].disconnects == 1, "the engine was told")


async def test_early_rejection_keeps_those_inside_on_time() -> None:
    config = GatewayConfig(admission=AdmissionConfig(ttft_target=0.5))
    async with fleet(1, config=config) as f:
        engine = f.engines[0]
        engine.prefill_rate = 2000
        bodies = [f.chat(f"{i} " + "word " * 300, max_tokens=1, stream=True) for i in range(12)]
        for body in bodies[:3]:
            # The gateway learns the engine's rate.
            await f.post(body)
        answers = await asyncio.gather(*(f.post(body) for body in bodies))
        codes = [a.status_code for a in answers]
        assert codes.count(200) >= 1
        assert codes.count(429) >= 4, codes
        for answer in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "overloaded"
                assert 1 <= int(answer.headers["retry-after"]) <= 10
        f.check()


async def test_early_rejection_never_shuts_out_an_idle_fleet() -> None:
    """Whatever it believes of the replica: what nobody is sent is never measured again."""
    config = GatewayConfig(admission=AdmissionConfig(ttft_target=0.001, tpot_target=0.001))
    async with fleet(1, config=config) as f:
        f.engines[0].decode_seconds = 0.02
        for i in range(4):
            assert (await f.post(f.chat(str(i), max_tokens=3))).status_code == 200
        running = asyncio.ensure_future(f.stream(f.chat("long", max_tokens=200)))
        await eventually(lambda: f.engines[0].generated > 14, "it is busy")
        refused = await f.post(f.chat("late", max_tokens=3))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert f.registry is not None
        ledger = f.registry.ledger
        await eventually(lambda: ledger.live() == 0, "its lease is released")
        f.check()


async def test_a_client_that_takes_nothing_is_let_go() -> None:
    async with fleet(1, config=GatewayConfig(reader_seconds=0.4)) as f:
        f.engines[0].decode_seconds, f.engines[0].padding = 0.0, "x" * 50_000
        body = json.dumps(f.chat("x", max_tokens=5_000, stream=True)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(f.url.rsplit(":", 1)[1]), limit=1024)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: f.engines[0].disconnects == 1, "the engine may stop", 30)
        writer.transport.abort()
        f.check()


async def test_a_replica_that_comes_back_is_used_again() -> None:
    async with fleet(2, monitored=True) as f:
        assert f.registry is not None
        registry, engine = f.registry, f.engines[0]
        engine.ready = False
        await eventually(lambda: not registry.get("e0").state.healthy, "it is found ill")
        for i in range(4):
            assert (await f.post(f.chat(str(i)))).headers["x-shoal-replica"] == "e1"
        engine.ready = True
        await eventually(lambda: registry.get("e0").state.healthy, "it is found well")
        await asyncio.gather(*(f.post(f.chat(f"again {i}")) for i in range(6)))
        assert engine.requests > 0


async def test_no_replica_is_said_within_its_time() -> None:
    async with fleet(1, config=GatewayConfig(down_seconds=0.2), monitored=True) as f:
        assert f.registry is not None
        registry = f.registry
        await f.engines[0].stop()
        await eventually(lambda: not registry.get("e0").state.healthy, "it is found dead")
        answer = await f.post(f.chat())
        assert answer.status_code == 503
        assert "of 1: 1 unhealthy" in answer.json()["error"]["message"]
        with pytest.raises(httpx.HTTPStatusError):
            (await f.client.get("/ready")).raise_for_status()
