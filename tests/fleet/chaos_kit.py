"""Chaos: a real fleet under load while its replicas are killed, stopped, slowed, cut off and garbled.

The fleet runs in this process, its replicas as processes of their own, a proxy before each for what happens on the
wire. Every answer is compared with the one that a fleet at peace gave.

    clients ─► gateway ─► proxy (slow, reset, garbage) ─► replica (kill −9, SIGSTOP, log on a full disk)
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.fleet import adapters, supervisor
from shoal.fleet.adapters import HttpAdapter, LaunchRequest, Traits
from shoal.fleet.adapters.shoal import Shoal
from shoal.fleet.config_file import parse_config
from shoal.fleet.gateway import RequestRecord
from shoal.fleet.launch import Command
from shoal.fleet.managed import ManagedReplica, ReplicaPhase
from shoal.fleet.service import FleetService
from shoal.http.listening import bind, url_of
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision

FAULTS = ("kill", "stop", "slow", "reset", "garbage")
_TYPED = frozenset({429, 502, 503, 504})


class Proxy:
    """Before one replica's process, for as long as it lives."""

    def __init__(self, listener: socket.socket, target: int) -> None:
        self._target = target
        self.delay = 0.0
        self.mode: str | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._starting = asyncio.ensure_future(self._start(listener))
        self._server: asyncio.Server | None = None

    async def _start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        ends = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer, answers=True))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            for end in ends:
                end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool = False) -> None:
        while data := await source.read(65536):
            if answers and self.delay:
                await asyncio.sleep(self.delay)
            if answers and self.mode == "garbage" and b"text_completion" in data:
                sink.write(bytes(random.Random(len(data)).randbytes(64)) + b"\r\n")
                await sink.drain()
                raise OSError("garbled")
            sink.write(data)
            await sink.drain()
        if answers:
            raise OSError("closed")
        sink.write_eof()

    def reset(self) -> None:
        """Cut every connection, as a network does: with RST."""
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

    def close(self) -> None:
        self._starting.cancel()
        if self._server is not None:
            self._server.close()
        self.reset()


class ChaosDialect:
    """Shoal's own engine, behind a proxy."""

    traits: Traits = Shoal.traits

    def __init__(self) -> None:
        self.proxies: dict[str, Proxy] = {}

    def command(self, request: LaunchRequest) -> Command:
        inner = socket.create_server(("127.0.0.1", 0), backlog=1024)
        outer = request.listener.dup()
        outer.setblocking(False)
        if (old := self.proxies.pop(request.name, None)) is not None:
            old.close()
        self.proxies[request.name] = Proxy(outer, inner.getsockname()[1])
        return Shoal().command(replace(request, listener=inner, port=inner.getsockname()[1]))

    def adapter(self, url: str, *, api_key: str | None, events: str | None) -> HttpAdapter:
        return Shoal().adapter(url, api_key=api_key, events=events)


@dataclass
class Report:
    """What came of it."""

    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """ok, typed error, error event, cancelled; and what must not be: wrong, truncated, untyped, lost"""
    problems: list[str] = field(default_factory=list)
    """Each answer that must not be."""
    restarts: int = 0
    continued: int = 0
    recovery_seconds: float = 0.0
    finished: int = 0
    """Requests that the gateway says have ended."""

    @property
    def sent(self) -> int:
        return sum(self.answers.values())

    def text(self) -> str:
        answers = ", ".join(f"{name} {count}" for name, count in sorted(self.answers.items()))
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.sent} requests in {self.seconds:.0f} s: {answers}; "
            f"{self.continued} streams carried on elsewhere\n"
            f"faults: {faults}; {self.restarts} restarts; whole again {self.recovery_seconds:.1f} s after the last"
        )


class _Counting:
    """What the gateway itself counts."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_decision(self, record: RequestRecord, decision: Decision) -> None: ...
    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None: ...
    def on_distrust(self, replica: str, trust: float) -> None: ...

    def on_finished(self, record: RequestRecord) -> None:
        if record.method == "POST":
            self._report.finished += 1
            self._report.continued += record.continued


def _config(model: Path, replicas: int, log_dir: Path) -> Any:
    return parse_config(
        {
            "listen": {"port": 0},
            "pools": [
                {"name": "tiny", "model": str(model), "served_name": "tiny", "replicas": replicas, "threads": 1,
                 "options": {"num_blocks": 300, "max_model_len": 512}}
            ],
            "health": {"check_seconds": 0.5, "check_timeout": 2, "failures": 2, "hang_seconds": 6},
            "gateway": {"first_byte_seconds": 20, "stall_seconds": 8, "down_seconds": 10, "attempts": 4,
                        "retry_share": 1.0},
            "supervisor": {"unhealthy_seconds": 8, "backoff_seconds": 0.1, "stable_seconds": 1, "stop_seconds": 5,
                           "log_dir": str(log_dir)},
        }
    )  # fmt: skip


PROMPTS = tuple(f"prompt {n} of several that all differ" for n in range(8))


def _body(kind: str, prompt: str) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 32, "ignore_eos": True, "stream": kind != "whole"}
    return body | ({"temperature": 1.0, "seed": 7} if kind == "seeded" else {"temperature": 0})


class Chaos:
    """One run over one fleet."""

    def __init__(self, service: FleetService, dialect: ChaosDialect, url: str, seed: int) -> None:
        self.service, self.dialect, self.url = service, dialect, url
        self.random = random.Random(seed)
        self.report = Report()
        self.expected: dict[tuple[str, str], str] = {}
        self._stop = asyncio.Event()

    async def learn(self) -> None:
        """The right answers, from the fleet at peace."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False) as client:
            for prompt in PROMPTS:
                for kind in ("whole", "seeded"):
                    answer = await client.post("/v1/completions", json=_body(kind, prompt) | {"stream": False})
                    text = answer.json()["choices"][0]["text"]
                    self.expected[kind, prompt] = text
                self.expected["greedy", prompt] = self.expected["whole", prompt]

    async def _client(self, number: int) -> None:
        chooser = random.Random(number)
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False) as client:
            while not self._stop.is_set():
                kind = chooser.choices(("greedy", "whole", "seeded"), (6, 3, 1))[0]
                prompt = chooser.choice(PROMPTS)
                leaves_after = chooser.randrange(1, 12) if chooser.random() < 0.04 else None
                try:
                    verdict = await self._ask(client, kind, prompt, leaves_after)
                except httpx.HTTPError as error:
                    verdict = "lost"
                    self.report.problems.append(f"{kind}: {type(error).__name__} {error}")
                self.report.answers[verdict] += 1

    async def _ask(self, client: httpx.AsyncClient, kind: str, prompt: str, leaves_after: int | None) -> str:
        expected = self.expected[kind, prompt]
        async with client.stream("POST", "/v1/completions", json=_body(kind, prompt)) as response:
            if response.status_code != 200:
                return self._typed(response.status_code, await response.aread())
            if kind == "whole":
                text = json.loads(await response.aread())["choices"][0]["text"]
                return "ok" if text == expected else self._bad("wrong", kind, text, expected)
            text, chunks, done, error = "", 0, False, None
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line[6:])
                    error = chunk.get("error", error)
                    text += "".join(choice["text"] for choice in chunk.get("choices", ()))
                    chunks += 1
                    if leaves_after is not None and chunks >= leaves_after:
                        return (
                            "cancelled" if expected.startswith(text) else self._bad("wrong", kind, text, expected)
                        )
        if error is not None:
            good = not done and expected.startswith(text) and error.get("code")
            return "error event" if good else self._bad("wrong", kind, text, expected)
        if not done:
            return self._bad("truncated", kind, text, expected)
        return "ok" if text == expected else self._bad("wrong", kind, text, expected)

    def _typed(self, status: int, body: bytes) -> str:
        with contextlib.suppress(ValueError, KeyError):
            error = json.loads(body)["error"]
            if status in _TYPED and error["message"] and error["type"]:
                return f"typed error {status}"
        self.report.problems.append(f"{status}: {body[:200]!r}")
        return "untyped"

    def _bad(self, verdict: str, kind: str, text: str, expected: str) -> str:
        self.report.problems.append(f"{verdict} {kind}: {text!r}, expected {expected!r}")
        return verdict

    # Faults.

    async def fault(self, kind: str, unit: ManagedReplica) -> None:
        """One fault, with its end."""
        self.report.faults[kind] += 1
        proxy, pid = self.dialect.proxies[unit.name], unit.pid
        if kind == "kill" and pid is not None:
            os.kill(pid, signal.SIGKILL)
        elif kind == "stop" and pid is not None:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self.random.uniform(2, 6))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        elif kind == "slow":
            proxy.delay = 0.2
            await asyncio.sleep(self.random.uniform(2, 4))
            proxy.delay = 0.0
        elif kind == "reset":
            proxy.reset()
        elif kind == "garbage":
            proxy.mode = "garbage"
            await asyncio.sleep(self.random.uniform(0.5, 1.5))
            proxy.mode = None

    async def run(self, seconds: float, clients: int, pause: tuple[float, float]) -> Report:
        """Load and faults for so long, then peace."""
        started = time.monotonic()
        load = [asyncio.ensure_future(self._client(number)) for number in range(clients)]
        kinds = list(FAULTS)
        self.random.shuffle(kinds)
        while time.monotonic() - started < seconds or sum(self.report.faults.values()) < len(FAULTS):
            count = sum(self.report.faults.values())
            # Every kind once, then at random.
            kind = kinds[count] if count < len(kinds) else self.random.choice(FAULTS)
            ready = [unit for unit in self.service.supervisor.replicas if unit.state is ReplicaPhase.READY]
            if ready:
                await self.fault(kind, self.random.choice(ready))
            await asyncio.sleep(self.random.uniform(*pause))
        calm = time.monotonic()
        await self.until_whole(90)
        self.report.recovery_seconds = time.monotonic() - calm
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*load), 90)
        self.report.seconds = time.monotonic() - started
        self.report.restarts = sum(unit.restarts for unit in self.service.supervisor.replicas)
        return self.report

    def whole(self) -> bool:
        """Every replica is ready and would be given requests."""
        registry = self.service.registry
        now = registry.clock()
        return all(
            unit.state is ReplicaPhase.READY and unit.name in registry and self._able(unit.name, now)
            for unit in self.service.supervisor.replicas
        )

    def _able(self, name: str, now: float) -> bool:
        replica = self.service.registry.get(name)
        return replica.state.healthy and not replica.state.ejected and replica.breaker.allows(now)

    async def until_whole(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not self.whole():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def check_books(self) -> None:
        """Nothing is held for requests that have ended: neither by the gateway nor in any engine."""
        service, registry = self.service, self.service.registry
        gateway = service.gateway
        assert gateway is not None
        async with asyncio.timeout(30):
            while gateway.live or registry.ledger.live():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            registry.ledger.check()
            for replica in registry.replicas:
                assert (replica.state.inflight, replica.state.decoding) == (0, 0), replica.state
                adapter = replica.handle.adapter
                assert adapter is not None
                while True:
                    stats = await adapter.stats()
                    if stats.running == stats.waiting == 0 and stats.kv_usage == 0:
                        break
                    await asyncio.sleep(0.1)
        assert self.report.finished == self.report.sent


@contextlib.asynccontextmanager
async def chaos_fleet(model: Path, folder: Path, replicas: int, seed: int) -> AsyncIterator[Chaos]:
    """A fleet of real replicas, one of which logs onto a full disk."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    (logs / "tiny-0.log").symlink_to("/dev/full")
    config = _config(model, replicas, logs)
    dialect = ChaosDialect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "DIALECTS", {**adapters.DIALECTS, "shoal": dialect})
        service = FleetService(config, cores=replicas)
        sock = bind("127.0.0.1", 0)
        ready = asyncio.Event()

        async def on_ready(service: FleetService) -> None:
            ready.set()

        running = asyncio.ensure_future(service.run(sock, on_ready))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=110)
        if running.done():
            running.result()
        assert ready.is_set(), "not ready within 110 s"
        try:
            chaos = Chaos(service, dialect, url_of(sock), seed)
            assert service.gateway is not None
            await chaos.learn()
            service.gateway.observers.all.append(_Counting(chaos.report))
            yield chaos
        finally:
            service.stop()
            await asyncio.wait_for(running, 60)
            for proxy in dialect.proxies.values():
                proxy.close()
