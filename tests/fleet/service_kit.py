"""A fleet service in this process, as a file describes it, before fake engines on real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from engine import FakeEngine

from shoal.fleet.config import FleetConfig
from shoal.fleet.config_file import load_config
from shoal.fleet.service import FleetService, signals_steer
from shoal.http.listening import bind, url_of
from shoal.observe.fleet import FleetEquipment


@contextlib.asynccontextmanager
async def engines(count: int, kind: type[FakeEngine] = FakeEngine) -> AsyncIterator[list[FakeEngine]]:
    made = [await kind(f"e{i}").start() for i in range(count)]
    try:
        yield made
    finally:
        for engine in made:
            await engine.stop()


def write(
    path: Path, found: list[FakeEngine], *, engine: str = "openai", pool: Any = None, **sections: Any
) -> Path:
    pools = [{"name": "p", "model": "fake", "engine": engine, "urls": [e.url for e in found]} | (pool or {})]
    path.write_text(json.dumps({"pools": pools, "supervisor": {"log_dir": str(path.parent / "logs")}} | sections))
    return path


@contextlib.asynccontextmanager
async def served(path: Path) -> AsyncIterator[tuple[FleetService, str]]:
    """The fleet that a file describes, on a free port, obeying signals to this process."""

    def read() -> FleetConfig:
        return load_config(path)

    config = read()
    sock = bind("127.0.0.1", 0)
    url = url_of(sock)
    if config.listen.tls_certificate:
        url = url.replace("http:", "https:")
    ready = asyncio.Event()

    async def on_ready(service: FleetService) -> None:
        ready.set()

    service = FleetService(config, cores=1, equip=FleetEquipment(), read_config=read)
    with signals_steer(service):
        running = asyncio.ensure_future(service.run(sock, on_ready))
        started = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({running, started}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert started.done(), running
            yield service, url
        finally:
            started.cancel()
            service.stop()
            async with asyncio.timeout(30):
                await running


def client(url: str, **more: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, **more)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "abcdefgh", "max_tokens": 4, "temperature": 0} | fields
