"""Bodies of requests on their way in: of the right kind, not too large, and not for ever."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive

from shoal.fleet.gateway.config import GatewayConfig
from shoal.fleet.gateway.head import RequestHead
from shoal.http.bodies import check_head, decoded
from shoal.http.errors import body_timeout, body_too_large
from shoal.http.event_stream import ClientDisconnected


class Bodies:
    """Reads them. One sweep watches all that are arriving: a timer each costs more."""

    def __init__(self, config: GatewayConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._reading: dict[asyncio.Task[Any], float] = {}
        """Since when."""
        self._slow: set[asyncio.Task[Any]] = set()

    def sweep(self, now: float) -> None:
        """End those that take too long; call it now and then."""
        for task, begun in list(self._reading.items()):
            if now - begun > self._config.body_seconds and task not in self._slow:
                self._slow.add(task)
                task.cancel()

    async def read(self, receive: Receive, head: RequestHead, task: "asyncio.Task[Any]") -> bytes:
        """Return the whole body, decompressed. `ApiError` 400, 408, 413 or 415, or `ClientDisconnected`."""
        limit = self._config.max_body_bytes
        check_head(head.content_type, head.content_length, limit)
        self._reading[task] = self._clock()
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                if part := message.get("body", b""):
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        raise body_too_large(limit)
                if not message.get("more_body", False):
                    body = parts[0] if len(parts) == 1 else b"".join(parts)
                    break
        except asyncio.CancelledError:
            if task not in self._slow:
                raise
            self._slow.discard(task)
            task.uncancel()
            raise body_timeout(self._config.body_seconds) from None
        finally:
            del self._reading[task]
        return await decoded(body, head.content_encoding, limit) if head.content_encoding else body
