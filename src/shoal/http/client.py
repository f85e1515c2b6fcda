"""A lean HTTP/1.1 client for one replica: pooled connections, bytes passed on as they come, every failure typed.

General clients spend several hundred microseconds a request on what a relay doesn't need. This one parses with
llhttp (`httptools`) and nothing else. A connection carries one exchange at a time; abandoning an answer closes it,
which is how an engine learns that nobody waits any more.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from shoal.http.client_connection import Connection, transport_fault
from shoal.policy.outcomes import LegFailed, Outcome

CONNECT_SECONDS = 5.0


def _reason(error: OSError) -> str:
    """The system's words: asyncio's own say only that a call failed."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


class HttpResponse:
    """A replica's answer: the head is there, the body is read piece by piece. `close` it, always."""

    def __init__(self, endpoint: "Endpoint", connection: Connection) -> None:
        self._endpoint = endpoint
        self._connection: Connection | None = connection
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
        """The whole body; a fault if it is larger than `limit` bytes, `TimeoutError` after `seconds` in all."""
        parts, size = [], 0
        clock = asyncio.get_running_loop().time
        deadline = None if seconds is None else clock() + seconds
        while piece := await self.read(None if deadline is None else deadline - clock()):
            parts.append(piece)
            size += len(piece)
            if size > limit:
                raise LegFailed(Outcome.REPLICA_FAULT, f"the answer is larger than {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
        self._idle: list[Connection] = []
        self._busy: dict[Connection, None] = {}
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
    ) -> HttpResponse:
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
            self._busy[connection] = None
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
                return HttpResponse(self, connection)
            self._discard(connection)
            if not (reused and not connection.started):
                raise connection.error
            # The peer had closed an idle connection as we took it: it has seen nothing of this request.

    def _reuse(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> Connection:
        if self._closed:
            raise transport_fault("the endpoint is closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    Connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise transport_fault(f"no connection to {self.url} within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise transport_fault(f"no connection to {self.url}: {_reason(error)}") from None
        return connection

    def release(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        connection.used = True
        whole = connection.complete and not connection.pieces and connection.keep and not connection.closed
        if whole and not self._closed and len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.abort()

    def _discard(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        connection.abort()

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
