"""Answers that stop when nobody listens: the client's departure ends the work, at whatever stage.

request ──► work ──────────► response
             ▲ cancelled
receive() ───┘ http.disconnect, or a reader that takes nothing for too long
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from shoal.http.errors import ApiError, ErrorBody, error_json, shutting_down
from shoal.http.sse import HEARTBEAT

T = TypeVar("T")

STALL_SECONDS = 120.0
"""A stream whose reader takes nothing for this long is ended: its blocks are worth more than its patience."""
HEARTBEAT_STATE = "heartbeat_seconds"
"""Where the scope's state says after how long a silence it is sent; 0 or nothing: never."""


async def off_loop_if(heavy: bool, work: Callable[[], T]) -> T:
    """Do `work` in a thread where it is heavy: other streams must not wait for a long prompt's tokens."""
    return await asyncio.to_thread(work) if heavy else work()


class ClientDisconnected(Exception):
    """The client left (or stalled); there is nobody to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client leaves first (`ClientDisconnected`).

    Call it when the whole body has been read: from then on `receive` only ever reports the disconnect.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        await _end(task, watcher)


def _error_event(body: ErrorBody) -> bytes:
    return b"data: " + error_json(body) + b"\n\n"


class EventStream:
    """A response of server-sent events.

    The status line waits for the first event, so that whatever fails before it has its own HTTP status and can be
    tried elsewhere. A failure after it becomes the event that `on_error` makes of it, and the stream ends without
    its API's closing event. A silent stream gets comments, which begin it if need be: proxies cut what seems dead.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        on_error: Callable[[ErrorBody], bytes] = _error_event,
        stall_seconds: float | None = None,
    ) -> None:
        self._events = events
        self._on_error = on_error
        self._stall = STALL_SECONDS if stall_seconds is None else stall_seconds
        self._started = False
        self._sending_since: float | None = None
        self._sent_at = time.monotonic()
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        heartbeat = float(scope.get("state", {}).get(HEARTBEAT_STATE, 0.0))
        sender = asyncio.ensure_future(self._run(send))
        watcher = asyncio.ensure_future(_disconnect(receive))
        beat: asyncio.Future[None] | None = None
        wait = min(self._stall / 4, heartbeat / 4) if heartbeat else self._stall / 4
        try:
            while not sender.done() and not watcher.done() and not self._stalled():
                await asyncio.wait({sender, watcher}, return_when=asyncio.FIRST_COMPLETED, timeout=wait)
                silent = heartbeat and time.monotonic() - self._sent_at > heartbeat
                if silent and not sender.done() and self._sending_since is None:
                    # Not waited for here: a reader that takes nothing must be noticed all the same.
                    beat = asyncio.ensure_future(self._send(send, HEARTBEAT))
            if not sender.done():
                raise ClientDisconnected
            sender.result()
        except asyncio.CancelledError:
            await _end(sender)
            if self._started:
                await self._send(send, self._on_error(shutting_down().body))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise
        finally:
            await _end(sender, watcher, *([beat] if beat is not None else []))

    def _stalled(self) -> bool:
        since = self._sending_since
        return since is not None and time.monotonic() - since > self._stall

    async def _run(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            try:
                async for event in events:
                    await self._send(send, event)
            except ApiError as error:
                if not self._started:
                    raise
                await self._send(send, self._on_error(error.body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, event: bytes) -> None:
        async with self._sending:
            self._sending_since = time.monotonic()
            if not self._started:
                self._started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [
                            (b"content-type", b"text/event-stream; charset=utf-8"),
                            (b"cache-control", b"no-cache"),
                            # Tells nginx not to hold events back.
                            (b"x-accel-buffering", b"no"),
                        ],
                    }
                )
            await send({"type": "http.response.body", "body": event, "more_body": True})
            self._sent_at, self._sending_since = time.monotonic(), None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
