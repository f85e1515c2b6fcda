"""Servers on real sockets over the script engine (see serverkit)."""

import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from serverkit import ScriptEngine, Served, eventually

from shoal.engine.server.app import build_app
from shoal.engine.server.listening import bind, url_of
from shoal.engine.server.state import ServerOptions, ServerState


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start servers with given options; all are stopped after the test."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(*, attach: bool = True, **options: object) -> Served:
        server_options = ServerOptions(port=0, **options)  # type: ignore[arg-type]
        engine = ScriptEngine()
        state = ServerState(server_options, "script", created=1)
        if attach:
            state.attach(engine)
        sock = bind(server_options)
        config = uvicorn.Config(build_app(state), lifespan="off", log_config=None, http="httptools")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        running.append((server, thread))
        eventually(lambda: server.started, "server started")
        return Served(url_of(sock), state, engine)

    yield start
    for server, _ in running:
        server.force_exit = server.should_exit = True
    for _, thread in running:
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()
