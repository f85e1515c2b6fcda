"""HTTP/1.1 on the wire, for uvicorn: a connection that parses with llhttp and speaks ASGI, and little else.

Uvicorn owns sockets, TLS and the order of shutting down. Its own protocol class costs a quarter of what a gateway
spends on a request, waits for ever for the first request of a connection and for the rest of a head that has begun,
and tells of a client that leaves only to whoever waits in `receive`, which takes a task for every request.

Here a head is written together with what follows it, the deadlines of a connection share one timer that is seldom
looked at, and a callback tells who left.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from shoal.http.exchange import LINES, HttpExchange

HEAD_SECONDS = 30.0
"""From the connection, or from the first byte of a further request, until its head is complete."""
ON_LOST = "shoal.on_lost"
"""ASGI extension: a function that takes what to call if the client leaves before its answer; None takes it back."""
HEAD_BYTES = 64 * 1024
"""Of a request's line and headers at most."""
_BODY_BYTES = 64 * 1024
"""Of a body that nobody has received yet; beyond, the socket is left to fill up."""
_TIMER_SECONDS = 5.0
"""A deadline is noticed so much late at most: moving it costs nothing."""


class HttpProtocol(asyncio.Protocol):
    """One connection. Requests that come before the last was answered wait."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast(ASGIApp, config.loaded_app)
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._keep_alive_seconds = float(config.timeout_keep_alive)
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request that says "close" is not looked at, rather than held against it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._transport: asyncio.Transport
        self._fixed: dict[str, Any] = {}
        self._usual: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")
        self.usual_lines = 0
        self.drained: asyncio.Future[None] | None = None
        """There while the client takes nothing."""
        self._current: HttpExchange | None = None
        """Being answered."""
        self._arriving: HttpExchange | None = None
        """Whose body comes in."""
        self._queue: deque[HttpExchange] = deque()
        self._paused = self._closing = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects = False
        """The client waits to be told that its body is wanted."""
        self._head_bytes = 0
        """Of the head that is arriving; 0: none is."""
        self._body_bytes = 0
        """Of bodies, in the piece that has come."""

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes
        self._fixed = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "scheme": "https" if is_ssl(self._transport) else "http",
            "root_path": "",
        }
        self._expect(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        begun, self._body_bytes = self._head_bytes, 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing is upgraded to: the request is answered as it stands, and what follows may not be HTTP.
            self._closing = True
        except httptools.HttpParserError:
            self._refuse(400)
            return
        if self._head_bytes:
            self._head_bytes += len(data) - self._body_bytes
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431)
            elif not begun:
                self._expect(HEAD_SECONDS)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        for exchange in (self._current, *self._queue):
            if exchange is not None and not exchange.done:
                exchange.lose()
        self._queue.clear()

    def pause_writing(self) -> None:
        if self.drained is None:
            self.drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._head_bytes, self._expects = b"", [], 1, False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        self._head_bytes, self._deadline = 0, None
        url, parser, headers = self._url, self._parser, self._headers
        query = b""
        if b"?" in url or not url.startswith(b"/"):
            parts = httptools.parse_url(url)
            url, query = parts.path or b"/", parts.query or b""
        path = url.decode("latin-1")
        version = parser.get_http_version()
        exchange = HttpExchange(
            self,
            self._fixed
            | {
                "http_version": version,
                "method": parser.get_method().decode("ascii"),
                "path": unquote(path) if "%" in path else path,
                "raw_path": url,
                "query_string": query,
                "headers": headers,
                "state": self._app_state.copy(),
            },
            keep_alive=version != "1.0" and parser.should_keep_alive() and not parser.should_upgrade(),
            expects=self._expects,
        )
        exchange.scope["extensions"] = {ON_LOST: exchange.on_lost}
        self._arriving = exchange
        if self._current is None:
            self._begin(exchange)
        else:
            self._queue.append(exchange)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        exchange = self._arriving
        if exchange is not None and not exchange.done:
            exchange.feed(body)
            if exchange.held > _BODY_BYTES:
                self.pause_reading()

    def on_message_complete(self) -> None:
        exchange, self._arriving = self._arriving, None
        if exchange is not None:
            exchange.whole = True
            exchange.wake()

    # What exchanges call.

    def usual_headers(self) -> bytes:
        """The server's own headers (the date), which uvicorn renews every second."""
        usual = self._server.default_headers
        if usual is not self._usual[0]:
            self._usual = (usual, b"".join(b"%b: %b\r\n" % header for header in usual))
            self.usual_lines = len(usual)
        return self._usual[1]

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def cut(self) -> None:
        """End the connection without the end of the answer."""
        self._closing = True
        self._transport.close()

    def answered(self, exchange: HttpExchange) -> None:
        """The next request's turn, or nobody's."""
        self._server.total_requests += 1
        self._current = None
        if not exchange.keep_alive:
            self.cut()
        elif self._queue:
            self._begin(self._queue.popleft())
        else:
            # What is left of a body that was answered before it had come is read and dropped.
            self._expect(self._keep_alive_seconds)
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self._queue and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        task = self._loop.create_task(exchange.run(self._app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _refuse(self, status: int) -> None:
        """An answer to what can't be read; never in the middle of another."""
        if self._current is None:
            text = HTTPStatus(status).phrase.encode()
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(text)
            self.write(LINES[status] + self.usual_headers() + head + text)
            self.cut()
            return
        self._closing = True
        self._current.keep_alive = False

    # Deadlines.

    def _expect(self, seconds: float) -> None:
        self._deadline = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_later(min(seconds, _TIMER_SECONDS), self._look)

    def _look(self) -> None:
        """Close where a deadline has passed, else look again while there is one."""
        self._timer = None
        if self._deadline is None or self._transport.is_closing():
            return
        left = self._deadline - self._loop.time()
        if left <= 0:
            self.cut()
        else:
            self._timer = self._loop.call_later(min(left, _TIMER_SECONDS), self._look)

    # What uvicorn calls.

    def shutdown(self) -> None:
        """Close, or let the answer that is under way be the last."""
        if self._current is None:
            self.cut()
        else:
            self._current.keep_alive = False
