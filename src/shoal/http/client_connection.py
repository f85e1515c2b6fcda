"""One connection to a replica: llhttp's events in, pieces of a body out, every failure typed."""

import asyncio
from collections import deque
from typing import cast

import httptools

from shoal.policy.outcomes import LegFailed, Outcome

Headers = list[tuple[bytes, bytes]]

_HEAD_LIMIT = 64 * 1024
_HIGH_WATER = 512 * 1024
"""Bytes of an answer held for a slow reader before the socket is left to fill up."""
_TIMER_SECONDS = 5.0
"""Between two looks at whether a wait has passed its deadline, at most."""


def transport_fault(message: str) -> LegFailed:
    return LegFailed(Outcome.TRANSPORT_FAULT, message)


class Connection(asyncio.Protocol):
    """One socket, one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.used = False
        """An exchange was completed on it before: the peer may have closed it meanwhile."""
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # For all its exchanges: llhttp goes on where an answer was whole.
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
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
            self.fail(transport_fault(f"the replica's answer isn't HTTP: {error}"))
            return
        if not self.head_done and self._head_bytes > _HEAD_LIMIT:
            self.fail(transport_fault(f"the replica's answer has more than {_HEAD_LIMIT} bytes of headers"))
            return
        self._wake()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.complete or self.error is not None:
            return
        if self.head_done and not self._framed and exc is None:
            # Neither a length nor chunks: the end of the connection is the end of the body.
            self.complete = True
            self._wake()
            return
        where = "before the whole answer" if self.started else "without an answer"
        self.fail(transport_fault(f"the replica closed the connection {where}"))

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
        waiter = self._waiter = self._loop.create_future()
        if seconds is not None:
            self._expect(seconds)
        try:
            await waiter
        finally:
            self._waiter = None
            self._deadline = 0.0

    def _expect(self, seconds: float) -> None:
        """Have `_look` come by then.

        A stream waits for every chunk, and a timer each time costs more than reading it: one that comes too early
        looks again, so that most waits set nothing.
        """
        now = self._loop.time()
        self._deadline = now + seconds
        if self._timer is not None:
            if self._timer_at <= self._deadline:
                return
            self._timer.cancel()
        self._timer_at = now + min(seconds, _TIMER_SECONDS)
        self._timer = self._loop.call_at(self._timer_at, self._look)

    def _look(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done() or not self._deadline:
            return
        left = self._deadline - self._loop.time()
        if left <= 0:
            waiter.set_exception(TimeoutError())
        else:
            self._expect(left)

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
