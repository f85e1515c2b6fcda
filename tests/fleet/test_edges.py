"""The edges of a fleet's endpoint, end to end over sockets: TLS, CORS, logs, reload, another engine's dialect."""

import asyncio
import hashlib
import json
import logging
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from engine import FakeEngine, expected_text, tokens_of
from service_kit import body, client, engines, served, write

from fleet import eventually

ORIGIN = "https://app.example"
KEY = "sk-the-key-that-nobody-must-see-0007"


class SglangFake(FakeEngine):
    """Speaks as SGLang does: its metrics, its model card."""

    async def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/metrics":
            text = (
                f'sglang:num_running_reqs{{model_name="{self.model}"}} {self.running}.0\n'
                f'sglang:num_queue_reqs{{model_name="{self.model}"}} {self.waiting}.0\n'
                f'sglang:token_usage{{model_name="{self.model}"}} 0.28\n'
                f'sglang:max_total_num_tokens{{model_name="{self.model}"}} 4096.0\n'
                f'sglang:generation_tokens_total{{model_name="{self.model}"}} {self.generated}.0\n'
                f'sglang:prompt_tokens_total{{model_name="{self.model}"}} {self.prompted}.0\n'
            ).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(text) + text
            )
        elif path == "/v1/models":
            card = {"id": self.model, "object": "model", "owned_by": "sglang", "max_model_len": 2048}
            self._json(writer, 200, {"object": "list", "data": [card]})
        else:
            await super()._get(writer, path)
        await writer.drain()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Self-signed, for the loopback."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    return cert, key


def files(folder: Path) -> list[str]:
    return [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]


async def test_https(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with engines(1) as found:
        listen = {"tls_certificate": str(cert), "tls_key": str(key)}
        async with served(write(tmp_path / "fleet.yaml", found, listen=listen)) as (_, url):
            assert url.startswith("https://")
            async with client(url, verify=ssl.create_default_context(cafile=str(cert))) as trusting:
                answer = await trusting.post("/v1/completions", json=body())
                assert answer.status_code == 200
                assert answer.json()["choices"][0]["text"] == expected_text(tokens_of("abcdefgh"), 4)
                async with trusting.stream("POST", "/v1/completions", json=body(stream=True)) as streamed:
                    raw = b"".join([piece async for piece in streamed.aiter_bytes()])
                assert raw.endswith(b"data: [DONE]\n\n")
            async with client(url) as strict:
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await strict.get("/health")
            async with client(url.replace("https:", "http:")) as plain:
                with pytest.raises(httpx.HTTPError):
                    await plain.get("/health")


async def test_other_origins_are_let_in_only_where_that_was_said(tmp_path: Path) -> None:
    preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
    preflight["access-control-request-headers"] = "authorization,content-type"
    async with engines(1) as found:
        async with served(write(tmp_path / "shut.yaml", found)) as (_, url), client(url) as shut:
            assert (await shut.options("/v1/completions", headers=preflight)).status_code == 405
            answer = await shut.post("/v1/completions", json=body(), headers={"origin": ORIGIN})
            assert answer.status_code == 200
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        listen = {"cors_origins": [ORIGIN]}
        async with served(write(tmp_path / "open.yaml", found, listen=listen)) as (_, url), client(url) as opened:
            allowed = await opened.options("/v1/completions", headers=preflight)
            assert allowed.status_code == 200
            assert allowed.headers["access-control-allow-origin"] == ORIGIN
            assert "POST" in allowed.headers["access-control-allow-methods"]
            answer = await opened.post("/v1/completions", json=body(), headers={"origin": ORIGIN})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
            other = preflight | {"origin": "https://elsewhere.example"}
            refused = await opened.options("/v1/completions", headers=other)
            assert "access-control-allow-origin" not in refused.headers


async def test_who_is_logged_is_who_is_connected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.access")
    async with engines(1) as found:
        path = write(tmp_path / "fleet.yaml", found, gateway={"access_log": True})
        async with served(path) as (_, url), client(url) as asking:
            headers = {"x-forwarded-for": "203.0.113.9", "forwarded": "for=203.0.113.9", "x-request-id": "mine"}
            assert (await asking.post("/v1/completions", json=body(), headers=headers)).status_code == 200
            assert (await asking.post("/v1/completions", json=body(model="?"))).status_code == 404
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "shoal.access"]
    good, bad = (line for line in lines if line["path"] == "/v1/completions")
    assert (good["client"], good["request_id"], good["status"], good["outcome"]) == ("127.0.0.1", "mine", 200, "ok")
    assert (good["model"], good["replica"], good["completion_tokens"]) == ("fake", "p-0", 4)
    assert good["seconds"] > 0
    assert (bad["status"], bad["model"], bad["replica"]) == (404, "", "")


async def test_the_access_log_is_written_bare_and_without_keys(tmp_path: Path) -> None:
    """`shoal serve` as a process: what it really prints. And nothing of a key in any page or log."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    async with engines(1) as found:
        keys = [{"name": "alice", "sha256": digest, "scopes": ["generate", "observe"]}]
        path = write(tmp_path / "fleet.yaml", found, gateway={"access_log": True}, keys=keys)
        command = [sys.executable, "-m", "shoal.cli", "serve", "--config", str(path), "--port", "0"]
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200", "SHOAL_LOG_LEVEL": "DEBUG"}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment
        )
        said = bytearray()

        async def listen() -> None:
            assert process.stdout is not None
            while piece := await process.stdout.read(65536):
                said.extend(piece)

        listening = asyncio.ensure_future(listen())
        pages: list[str] = []
        try:
            await eventually(lambda: b"Ctrl-C stops" in said or process.returncode is not None, "it is ready", 100)
            address = re.search(r"http://127\.0\.0\.1:\d+(?=/v1)", said.decode())
            assert address is not None, said.decode()
            url = address.group(0)
            async with client(url) as asking:
                authorized = {"authorization": f"Bearer {KEY}"}
                assert (await asking.post("/v1/completions", json=body(), headers=authorized)).status_code == 200
                wrong = {"authorization": f"Bearer {KEY}x"}
                assert (await asking.post("/v1/completions", json=body(), headers=wrong)).status_code == 401
                assert (await asking.get("/api/fleet")).status_code == 401
                in_body = body(user=KEY, stop=7)
                await asking.post("/v1/completions", json=in_body, headers=authorized)
                for page in ("/", "/metrics", "/api/fleet", "/v1/models", "/health", "/ready"):
                    answer = await asking.get(page, headers=authorized)
                    assert answer.status_code == 200, page
                    pages += [answer.text, str(answer.headers)]
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            async with asyncio.timeout(30):
                await process.wait()
            await listening
    text = said.decode()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    assert [line["status"] for line in lines if line["path"] == "/v1/completions"][:2] == [200, 401]
    assert {line["key"] for line in lines if line["status"] == 200 and line["path"] == "/v1/completions"} == {
        "alice"
    }
    for place in (text, *pages, *files(tmp_path)):
        assert KEY not in place
    assert KEY not in str([seen.headers for engine in found for seen in engine.seen]), "nor is it passed on"


@pytest.mark.parametrize("kind", ["fake", "sglang"])
async def test_a_reload_under_load_drops_nothing(kind: str, tmp_path: Path) -> None:
    """SIGHUP: a replica more, another name, a limit; then a file with an error, and back again."""
    fake = SglangFake if kind == "sglang" else FakeEngine
    engine = "sglang" if kind == "sglang" else "openai"
    async with engines(2, fake) as found:
        for each in found:
            each.decode_seconds = 0.005
        path = write(tmp_path / "fleet.yaml", found[:1], engine=engine)
        async with served(path) as (service, url), client(url) as asking:
            stop, ended = asyncio.Event(), []

            async def load(streams: bool) -> None:
                while not stop.is_set():
                    async with asking.stream(
                        "POST", "/v1/completions", json=body(stream=streams, max_tokens=20)
                    ) as got:
                        raw = b"".join([piece async for piece in got.aiter_bytes()])
                    ended.append((got.status_code, raw.endswith(b"data: [DONE]\n\n") if streams else True))

            clients = [asyncio.ensure_future(load(place % 2 == 0)) for place in range(4)]
            await eventually(lambda: len(ended) > 4, "it is under load")
            write(path, found, engine=engine, pool={"aliases": ["another"]}, gateway={"max_body_bytes": 3000})
            os.kill(os.getpid(), signal.SIGHUP)
            await eventually(lambda: service.reloads == 1, "it was reloaded", 60)
            assert len(service.supervisor.replicas) == 2
            cards = (await asking.get("/v1/models")).json()["data"]
            assert {card["id"] for card in cards} == {"fake", "another"}
            assert (await asking.post("/v1/completions", json=body(prompt="x" * 4000))).status_code == 413
            seen = found[1].requests
            await eventually(lambda: found[1].requests > seen + 2, "the new replica has its share")
            path.write_text('{"pools": []}')
            os.kill(os.getpid(), signal.SIGHUP)
            count = len(ended)
            await eventually(lambda: len(ended) > count + 8, "it goes on as it was")
            assert service.reloads == 1
            (stays,) = (unit for unit in service.supervisor.replicas if unit.url == found[1].url)
            write(path, found[1:], engine=engine, pool={"aliases": ["another"]})
            os.kill(os.getpid(), signal.SIGHUP)
            await eventually(lambda: service.reloads == 2, "and again", 60)
            assert [unit.url for unit in service.supervisor.replicas] == [found[1].url]
            assert (await asking.post("/v1/completions", json=body(prompt="x" * 4000))).status_code == 200
            stop.set()
            await asyncio.gather(*clients)
            assert service.supervisor.replicas[0] is stays, "a replica that is named before and after isn't touched"
            assert set(ended) == {(200, True)}, "no request was dropped"
            ledger = service.registry.ledger
            await eventually(lambda: ledger.live() == 0, "every lease was released")
            ledger.check()


async def test_sglang_is_understood_over_a_socket(tmp_path: Path) -> None:
    async with (
        engines(1, SglangFake) as found,
        served(write(tmp_path / "fleet.yaml", found, engine="sglang")) as (service, url),
        client(url) as asking,
    ):
        cards = (await asking.get("/v1/models")).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in cards] == [("fake", 2048)]
        answer = await asking.post("/v1/completions", json=body(max_tokens=6))
        assert answer.json()["usage"]["completion_tokens"] == 6
        async with asking.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=6)) as streamed:
            raw = b"".join([piece async for piece in streamed.aiter_bytes()])
        assert raw.endswith(b"data: [DONE]\n\n")
        replica = service.registry.get("p-0")
        await eventually(lambda: replica.stats.generated_tokens == found[0].generated, "its counters are read")
        assert (replica.stats.kv_usage, replica.stats.kv_capacity_tokens) == (0.28, 4096)
        assert "return_token_ids" not in found[0].seen[-1].body, "it doesn't know that field"
