"""HTTP on the wire: uvicorn's protocol with a deadline for the head of a request, and word of clients that leave.

Uvicorn waits for ever for the first request of a connection, and for the rest of a head that has begun; a client
that opens connections and says nothing would hold a file descriptor each. ASGI tells of a client that leaves to
whoever waits in `receive`, which takes a task for every request; a callback takes nothing.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30.0
"""From the connection, or from the first byte of a further request, until its head is complete."""
ON_LOST = "shoal.on_lost"
"""ASGI extension: a function that takes what to call if the client leaves before its answer; None takes it back."""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None
    _lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        between_requests = self.cycle is None or self.cycle.response_complete
        if between_requests and self._deadline is None:
            self._expect_head()
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ON_LOST: self._on_lost}  # type: ignore[dict-item]

    def _on_lost(self, callback: Callable[[], None] | None) -> None:
        self._lost = callback
        if callback is not None and self.transport.is_closing():
            self.loop.call_soon(self._tell)

    def _tell(self) -> None:
        callback, self._lost = self._lost, None
        if callback is not None:
            callback()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)
        self._tell()

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _head_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
