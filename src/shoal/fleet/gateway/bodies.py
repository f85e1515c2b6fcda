"""Bodies of requests on their way in: of the right kind, not too large, and not for ever."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.types import Receive

from shoal.fleet.gateway.config import GatewayConfig
from shoal.fleet.gateway.head import RequestHead
from shoal.http.encodings import OFF_LOOP_BYTES, decompress, is_encoded
from shoal.http.errors import body_timeout, body_too_large, unsupported_media_type
from shoal.http.event_stream import ClientDisconnected, off_loop_if


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
        """The whole body as it came. `ApiError` 408, 413 or 415, or `ClientDisconnected`."""
        media = head.content_type.split(b";", 1)[0].strip().lower()
        if media != b"application/json" and not media.endswith(b"+json"):
            raise unsupported_media_type(media.decode("latin-1"))
        limit, length = self._config.max_body_bytes, head.content_length
        if length.isdigit() and int(length) > limit:
            raise body_too_large(limit)
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
                    return parts[0] if len(parts) == 1 else b"".join(parts)
        except asyncio.CancelledError:
            if task not in self._slow:
                raise
            self._slow.discard(task)
            task.uncancel()
            raise body_timeout(self._config.body_seconds) from None
        finally:
            del self._reading[task]

    async def decompress(self, body: bytes, head: RequestHead) -> bytes:
        """A body without its content encoding. `ApiError` 400, 413 or 415."""
        encoding = head.content_encoding.decode("latin-1")
        if not is_encoded(encoding):
            return body
        undo = partial(decompress, body, encoding, self._config.max_body_bytes)
        return await off_loop_if(len(body) > OFF_LOOP_BYTES, undo)
