"""One request and its answer, as ASGI sees them."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

log = logging.getLogger("uvicorn.error")

LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}
"""Status lines."""
_NO_BODY = (204, 304)
_DISCONNECT: Message = {"type": "http.disconnect"}
_FAILED: Message = {
    "type": "http.response.start",
    "status": 500,
    "headers": [(b"content-type", b"text/plain"), (b"content-length", b"21"), (b"connection", b"close")],
}


class Connection(Protocol):
    """What carries exchanges."""

    drained: asyncio.Future[None] | None
    """There while the client takes nothing."""
    usual_lines: int
    """Headers in `usual_headers`."""

    def usual_headers(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def cut(self) -> None: ...
    def answered(self, exchange: "HttpExchange") -> None: ...
    def resume_reading(self) -> None: ...


class HttpExchange:
    """A request and its answer, as ASGI sees them: `scope`, `receive`, `send`."""

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, expects: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.whole = False
        """The last of the body has come."""
        self.started = self.done = False
        self.lost = False
        self._connection = connection
        self._expects = expects
        self._pieces: list[bytes] = []
        self.held = 0
        self._told = False
        self._waiter: asyncio.Future[None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._head: list[bytes] = []
        self._chunked = False
        self._left: int | None = None
        """Bytes of the body still to come, where its length was promised."""

    # From the connection.

    def feed(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.held += len(piece)
        self.wake()

    def lose(self) -> None:
        self.lost = True
        self.wake()
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # To the application.

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Call it if the client leaves before its answer is whole; None: no longer."""
        self._on_lost = callback
        if callback is not None and self.lost:
            asyncio.get_running_loop().call_soon(self.lose)

    async def receive(self) -> Message:
        connection = self._connection
        if self._expects:
            self._expects = False
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._pieces or (self.whole and not self._told)):
            if self.lost or self.done:
                return _DISCONNECT
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.lost:
            return _DISCONNECT
        pieces, self._pieces, self.held = self._pieces, [], 0
        self._told = self.whole
        connection.resume_reading()
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": not self.whole}

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.drained is not None:
            await connection.drained
        if self.lost:
            return
        kind = message["type"]
        if kind == "http.response.body" and self._head and not self.done:
            self._body(message.get("body", b""), more=message.get("more_body", False))
        elif kind == "http.response.start" and not self._head:
            self._start(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"{kind!r} is out of order")

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Make the head; it is written with the first of the body."""
        line = LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        head = [line, self._connection.usual_headers()]
        lines = self._connection.usual_lines + 1
        for name, value in headers:
            if len(name) == 14 and name.lower() == b"content-length":
                self._left = int(value)
            elif len(name) == 10 and name.lower() == b"connection" and b"close" in value.lower():
                # Said once, below, whoever wants it.
                self.keep_alive = False
                continue
            lines += 1
            head += (name, b": ", value, b"\r\n")
        if self.scope["method"] == "HEAD" or status in _NO_BODY:
            self._left = 0
        elif self._left is None:
            # Who speaks 1.0 reads to the end of the connection.
            self._chunked = self.scope["http_version"] != "1.0"
            if self._chunked:
                head.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keep_alive = False
        if not self.keep_alive:
            head.append(b"connection: close\r\n")
        whole = b"".join(head)
        lines += self._chunked + (not self.keep_alive)
        if whole.count(b"\n") != lines or whole.count(b"\r") != lines or b"\0" in whole:
            raise RuntimeError("a header of the answer has a line break or a zero byte in it")
        self._head = [whole, b"\r\n"]

    def _body(self, body: bytes, *, more: bool) -> None:
        out = [] if self.started else self._head
        self.started = True
        if self._chunked:
            if body:
                out += (b"%x\r\n" % len(body), body, b"\r\n")
            if not more:
                out.append(b"0\r\n\r\n")
        elif self.scope["method"] != "HEAD":
            out.append(body)
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    self._connection.cut()
                    raise RuntimeError("the body's length is not its content-length")
        if out:
            self._connection.write(b"".join(out))
        if not more:
            self.done = True
            self.wake()
            self._connection.answered(self)

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            if not self.lost:
                log.error("an answer failed", exc_info=error)
        finally:
            # Its own method is in there: without this, every request would wait for the garbage collector.
            self.scope.pop("extensions", None)
        if self.done or self.lost:
            return
        if self.started:
            # The client must see that this is not the end.
            self._connection.cut()
            return
        self._head, self._left, self._chunked = [], None, False
        await self.send(_FAILED)
        await self.send({"type": "http.response.body", "body": b"Internal Server Error"})
