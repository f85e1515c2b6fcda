"""An HTTP server and what lives behind it, as one: it serves until either ends, and then lets go in order."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from shoal.http.transport import HttpProtocol

FLUSH_SECONDS = 5.0
"""When what is behind has ended every request, connections get this long to carry the last events out."""


@contextlib.contextmanager
def on_signals(actions: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Call these at signals of the process. Main thread of the running loop only."""
    loop = asyncio.get_running_loop()
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in actions:
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: the drain comes first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_while(
    app: ASGIApp,
    sock: socket.socket,
    life: Coroutine[Any, Any, None],
    *,
    close: Callable[[], Awaitable[None]],
    force: Callable[[], bool],
    certificate: str | None = None,
    key: str | None = None,
) -> None:
    """Serve `app` on `sock` until `life` ends; then `close` it, and the socket. What `life` raises is raised then.

    `force` is asked whether connections are to be cut. `certificate` and `key` are PEM files: HTTPS, then.
    """
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        loop="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        # The access log names who is connected, not what a client says of itself.
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(FLUSH_SECONDS),
        backlog=1024,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    living = asyncio.ensure_future(life)
    try:
        await asyncio.wait({serving, living}, return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            living.result()
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        await close()
        server.should_exit = True
        server.force_exit = force()
        await serving
        sock.close()
