"""A lean HTTP/1.1 client for one replica: pooled connections, bytes passed on as they come, every failure typed.

General clients spend several hundred microseconds a request on what a relay doesn't need. This one parses with
llhttp (`httptools`) and nothing else. A connection carries one exchange at a time; abandoning an answer closes it,
which is how an engine learns that nobody waits any more.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast
from urllib.parse import urlsplit

import httptools

from shoal.policy.outcomes import LegFailed, Outcome

Headers = list[tuple[bytes, bytes]]

_HEAD_LIMIT = 64 * 1024
_HIGH_WATER = 512 * 1024
"""Bytes of an answer held for a slow reader before the socket is left to fill up."""
CONNECT_SECONDS = 5.0


def _transport(message: str) -> LegFailed:
    return LegFailed(Outcome.TRANSPORT_FAULT, message)


class _Connection(asyncio.Protocol):
    """One socket, one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.used = False
        """An exchange was completed on it before: the peer may have closed it meanwhile."""
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: Headers = []
        self.started = False
        """A byte of the answer has come."""
        self.head_done = False
        self.complete = False
        self.error: LegFailed | None = None
        self.keep = False
        self._framed = False
        self._head_bytes = 0
        self.pieces: deque[bytes] = deque()
        self.buffered = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No check of its class: uvloop's transports are not asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete or self.error is not None:
            # Bytes that answer nothing: the stream is out of step.
            self.abort()
            return
        self.started = True
        if not self.head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(_transport(f"the replica's answer isn't HTTP: {error}"))
            return
        if not self.head_done and self._head_bytes > _HEAD_LIMIT:
            self.fail(_transport(f"the replica's answer has more than {_HEAD_LIMIT} bytes of headers"))
            return
        self._wake()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.complete or self.error is not None:
            return
        if self.head_done and not self._framed and exc is None:
            # Neither a length nor chunks: the end of the connection is the end of the body.
            self.complete = True
            self._wake()
            return
        where = "before the whole answer" if self.started else "without an answer"
        self.fail(_transport(f"the replica closed the connection {where}"))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self._framed = self.status in (204, 304) or any(
            name in (b"content-length", b"transfer-encoding") for name, _ in self.headers
        )
        self.head_done = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.buffered += len(body)
        if self.buffered > _HIGH_WATER and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self.head_done:
            # An interim answer (100, 103): the real one follows.
            self.headers = []
            return
        self.complete = True
        self.keep = self._framed and bool(self._parser.should_keep_alive())

    # What the exchange calls.

    def start(self, head: bytes, body: bytes) -> None:
        assert self.transport is not None
        if self.used:
            self._reset()
        self.transport.writelines((head, body) if body else (head,))

    async def wait(self, seconds: float | None) -> None:
        """Until something changed; `TimeoutError` after `seconds`."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, _expire, waiter) if seconds is not None else None
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def take(self) -> bytes:
        """Everything that has come."""
        pieces = self.pieces
        if len(pieces) == 1:
            data = pieces.popleft()
        else:
            data = b"".join(pieces)
            pieces.clear()
        self.buffered = 0
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()
        return data

    def fail(self, error: LegFailed) -> None:
        if self.error is None and not self.complete:
            self.error = error
        self.abort()
        self._wake()

    def abort(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _expire(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class Answer:
    """A replica's answer: the head is there, the body is read piece by piece. `close` it, always."""

    def __init__(self, endpoint: "Endpoint", connection: _Connection) -> None:
        self._endpoint = endpoint
        self._connection: _Connection | None = connection
        self.status = connection.status
        self.headers = connection.headers

    def header(self, name: bytes) -> bytes:
        """The first value of a header (lower-case name), or nothing."""
        return next((value for key, value in self.headers if key == name), b"")

    async def read(self, seconds: float | None = None) -> bytes:
        """What has come of the body, waiting for something; empty at its end.

        Raises `LegFailed` where the answer breaks off, `TimeoutError` after `seconds` without a byte.
        """
        connection = self._connection
        if connection is None:
            return b""
        while not connection.pieces:
            if connection.error is not None:
                raise connection.error
            if connection.complete:
                return b""
            await connection.wait(seconds)
        return connection.take()

    async def whole(self, limit: int, seconds: float | None = None) -> bytes:
        """The whole body; a fault if it is larger than `limit` bytes. `seconds` bounds every wait."""
        parts, size = [], 0
        while piece := await self.read(seconds):
            parts.append(piece)
            size += len(piece)
            if size > limit:
                raise LegFailed(Outcome.REPLICA_FAULT, f"the answer is larger than {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fail(self, error: LegFailed) -> None:
        """End it from outside: whoever reads gets the error."""
        if self._connection is not None:
            self._connection.fail(error)

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else cut it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._endpoint.release(connection)


class Endpoint:
    """The connections to one base URL."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        max_idle: int = 256,
        connect_seconds: float = CONNECT_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"replica url {url!r} is not accepted; expected http://host:port or https://host:port")
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/").encode()
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._fixed = b"host: " + parts.netloc.rpartition("@")[2].encode("idna") + b"\r\n"
        if api_key:
            self._fixed += b"authorization: Bearer " + api_key.encode() + b"\r\n"
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._max_idle = max_idle
        self._connect_seconds = connect_seconds
        self._closed = False

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    async def request(
        self,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        seconds: float | None = None,
        opened: Callable[[Callable[[LegFailed], None]], None] | None = None,
    ) -> Answer:
        """Send a request; its answer once the head has come. `seconds` bounds the wait for the head.

        `opened` is handed what ends the exchange from outside, as soon as there is one to end. Raises `LegFailed`
        (transport) or `TimeoutError`. Cancelling it closes the connection.
        """
        lines = [method, b" ", self._prefix, path, b" HTTP/1.1\r\n", self._fixed]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if body or method == b"POST":
            lines.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        head = b"".join(lines)
        while True:
            connection = self._reuse() or await self._connect()
            reused = connection.used
            self._busy.add(connection)
            if opened is not None:
                opened(connection.fail)
            try:
                connection.start(head, body)
                while not connection.head_done and connection.error is None:
                    await connection.wait(seconds)
            except BaseException:
                self._discard(connection)
                raise
            if connection.error is None:
                return Answer(self, connection)
            self._discard(connection)
            if not (reused and not connection.started):
                raise connection.error
            # The peer had closed an idle connection as we took it: it has seen nothing of this request.

    def _reuse(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> _Connection:
        if self._closed:
            raise _transport("the endpoint is closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    _Connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise _transport(f"no connection to {self.url} within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise _transport(f"no connection to {self.url}: {error.strerror or error}") from None
        return connection

    def release(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.used = True
        whole = connection.complete and not connection.pieces and connection.keep and not connection.closed
        if whole and not self._closed and len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.abort()

    def _discard(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.abort()

    @property
    def open_connections(self) -> int:
        return len(self._idle) + len(self._busy)

    async def get(self, path: bytes, *, seconds: float, limit: int = 16 * 2**20) -> tuple[int, bytes]:
        """Status and body of a small GET, all within `seconds`; raises like `request`."""
        async with asyncio.timeout(seconds):
            with contextlib.closing(await self.request(b"GET", path)) as answer:
                return answer.status, await answer.whole(limit)

    async def post(self, path: bytes, body: bytes, *, seconds: float, limit: int = 16 * 2**20) -> tuple[int, bytes]:
        """Status and body of a small POST, all within `seconds`; raises like `request`."""
        async with asyncio.timeout(seconds):
            with contextlib.closing(await self.request(b"POST", path, body)) as answer:
                return answer.status, await answer.whole(limit)

    def close(self) -> None:
        """Cut every connection."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        self._busy.clear()
