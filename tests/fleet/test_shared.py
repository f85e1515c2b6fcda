"""Two gateways of one fleet, each told of a real Redis by its `fleet.yaml` (`shared`)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from engine import FakeEngine
from redis_server import needs_redis, redis_server
from service_kit import body, client, engines, write

from fleet import eventually
from shoal.fleet.config_file import load_config
from shoal.fleet.service import FleetService
from shoal.fleet.shared import SharedState
from shoal.fleet.sharing import MissingRedis, connect
from shoal.http.listening import bind, url_of

pytest.importorskip("redis.asyncio", reason="needs the redis package")
pytestmark = needs_redis
PROMPT = "a long shared context " * 60


@contextlib.asynccontextmanager
async def gateway(path: Path) -> AsyncIterator[tuple[FleetService, httpx.AsyncClient]]:
    """A fleet of its own, ready."""
    sock = bind("127.0.0.1", 0)
    ready = asyncio.Event()

    async def on_ready(service: FleetService) -> None:
        ready.set()

    service = FleetService(load_config(path), cores=1, read_config=lambda: load_config(path))
    running = asyncio.ensure_future(service.run(sock, on_ready))
    try:
        async with asyncio.timeout(30), client(url_of(sock)) as asking:
            await ready.wait()
            yield service, asking
    finally:
        service.stop()
        await running


def state_of(service: FleetService) -> SharedState:
    assert service.sharing.state is not None
    return service.sharing.state


def file(folder: Path, name: str, found: list[FakeEngine], socket: str, **sections: object) -> Path:
    shared = {"redis": f"unix://{socket}", "prefix": "test"}
    return write(folder / name, found, shared=shared, router={"seed": ord(name[0])}, **sections)


async def test_what_one_gateway_decided_the_other_knows(tmp_path: Path) -> None:
    async with engines(4) as found, redis_server(tmp_path) as socket:
        a, b = (file(tmp_path, name, found, socket) for name in ("a.yaml", "b.yaml"))
        async with gateway(a) as (one, first), gateway(b) as (other, second):
            await eventually(lambda: state_of(one).connected and state_of(other).connected, "both are connected")
            asked = await first.post("/v1/completions", json=body(prompt=PROMPT))
            await eventually(lambda: state_of(other).received == 1, "the decision arrived")
            again = await second.post("/v1/completions", json=body(prompt=PROMPT))
            assert again.headers["x-shoal-replica"] == asked.headers["x-shoal-replica"]
            assert int(again.headers["x-shoal-hit"]) > 0


async def test_a_reload_keeps_sharing_and_redis_may_go(tmp_path: Path) -> None:
    async with engines(2) as found:
        async with redis_server(tmp_path) as socket:
            path = file(tmp_path, "a.yaml", found, socket)
            async with gateway(path) as (service, asking):
                await eventually(lambda: state_of(service).connected, "it is connected")
                before = state_of(service)
                file(tmp_path, "a.yaml", found, socket, gateway={"attempts": 5})
                service.reload()
                await eventually(lambda: service.reloads == 1, "it was read again")
                assert state_of(service) is before
                assert (await asking.post("/v1/completions", json=body(prompt=PROMPT))).status_code == 200
                await eventually(lambda: not before._outbox, "the new gateway's decision is sent")
                write(path, found)
                service.reload()
                await eventually(lambda: service.sharing.state is None, "nothing is shared any more")
        path = file(tmp_path, "a.yaml", found, str(tmp_path / "redis.sock"))
        async with gateway(path) as (service, asking):
            assert (await asking.post("/v1/completions", json=body())).status_code == 200
            assert not state_of(service).connected


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    config = load_config(file(tmp_path, "a.yaml", [FakeEngine("e", port=1)], "/none"))
    assert config.shared is not None
    with pytest.raises(MissingRedis, match="pip install 'shoal\\[redis\\]'"):
        connect(config.shared)
