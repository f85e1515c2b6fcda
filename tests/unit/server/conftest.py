"""Servers on real sockets over the script engine (see serverkit)."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from serverkit import ScriptEngine, Served, eventually

from shoal.http.listening import bind, url_of
from shoal.http.transport import HttpProtocol
from shoal.http.work_threads import use_work_threads
from shoal.server.app import build_app
from shoal.server.options import ServerOptions
from shoal.server.state import ServerState


def _start(**options: object) -> tuple[Served, Callable[[], None]]:
    attach = options.pop("attach", True)
    server_options = ServerOptions(port=0, **options)  # type: ignore[arg-type]
    engine = ScriptEngine()
    state = ServerState(server_options, "script", created=1)
    if attach:
        state.attach(engine)
    sock = bind(server_options.host, server_options.port)
    server = uvicorn.Server(
        uvicorn.Config(build_app(state), lifespan="off", log_config=None, http=HttpProtocol, ws="none")
    )
    loop = asyncio.new_event_loop()
    use_work_threads(loop)

    def run() -> None:
        loop.run_until_complete(server.serve([sock]))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: server.started, "server started")

    def stop() -> None:
        server.force_exit = server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()

    return Served(url_of(sock), state, engine, loop, thread), stop


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start servers with given options; all are stopped after the test."""
    stops: list[Callable[[], None]] = []

    def start(**options: object) -> Served:
        served, stop = _start(**options)
        stops.append(stop)
        return served

    yield start
    for stop in stops:
        stop()


@pytest.fixture(scope="session")
def _shared() -> Iterator[Served]:
    served, stop = _start()
    yield served
    stop()


@pytest.fixture
def served(_shared: Served) -> Iterator[Served]:
    """One server for all tests, its script reset for each; whatever a test asks must have ended after it."""
    _shared.engine.reset()
    yield _shared
    eventually(lambda: not _shared.engine.live, "every request has ended")
