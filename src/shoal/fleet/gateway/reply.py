"""The client's side of one request: head, bytes, the honest end of what breaks off."""

from collections.abc import Callable

from starlette.types import Send

from shoal.engine.server.errors import ErrorBody
from shoal.fleet.gateway.formats import StreamFormat
from shoal.fleet.gateway.record import RequestRecord

Headers = list[tuple[bytes, bytes]]


class Reply:
    """Of one request."""

    def __init__(self, send: Send, record: RequestRecord, clock: Callable[[], float], form: StreamFormat) -> None:
        self._send = send
        self._record = record
        self._clock = clock
        self._form = form
        self.started = False
        """The client has the head: its status can't change any more."""
        self.sending_since: float | None = None

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        self._record.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def start_stream(self, headers: Headers) -> None:
        """Begin a stream of events, unless it has begun."""
        if not self.started:
            await self.start(200, [*headers, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")])

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """An answer in one piece."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.write(body, last=True)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        self.sending_since = self._clock()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.sending_since = None
        self._record.bytes_sent += len(data)

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, body: ErrorBody) -> None:
        """End a stream that can't go on: an error event, and nothing that says that it is whole."""
        await self.write(self._form.error_event(body))
        await self.finish()
