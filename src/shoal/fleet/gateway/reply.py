"""The client's side of one request: head, bytes, the honest end of what breaks off."""

import asyncio
from collections.abc import Callable

from starlette.types import Send

from shoal.fleet.gateway.formats import StreamFormat
from shoal.fleet.gateway.record import RequestRecord
from shoal.http.errors import ErrorBody
from shoal.http.sse import HEARTBEAT
from shoal.policy.outcomes import Outcome

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
        self._finished = False
        self._sent_at = record.arrived
        self._beat: asyncio.Task[None] | None = None

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        self._record.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def start_stream(self, headers: Headers) -> None:
        """Begin a stream of events, unless a heartbeat has begun it."""
        if not self.started:
            await self.start(200, [*headers, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")])

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """An answer in one piece; not after a heartbeat."""
        if self._beat is not None:
            await self._after_beat()
        self.sending_since = self._clock()
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._sent_at, self.sending_since = self.sending_since, None
        self._record.bytes_sent += len(body)

    async def write(self, data: bytes) -> None:
        if self._beat is not None:
            await self._after_beat()
        self.sending_since = self._clock()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_at, self.sending_since = self.sending_since, None
        self._record.bytes_sent += len(data)

    def beat(self, now: float, seconds: float) -> None:
        """Send a comment if the stream has been silent for `seconds`; its head, if nothing was sent yet.

        From then on its status is 200, whatever comes; another replica may still answer it.
        """
        if now - self._sent_at < seconds or self.sending_since is not None or self._finished:
            return
        if self._beat is None or self._beat.done():
            self.sending_since = now
            self._beat = asyncio.ensure_future(self._send_beat())

    def hush(self) -> None:
        """Send no further heartbeats: `started` stays as it is."""
        self._finished = True

    async def _send_beat(self) -> None:
        if self._finished:
            return
        if not self.started:
            record = self._record
            await self.start_stream(
                [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"x-request-id", record.request_id.encode()),
                ]
            )
        await self._send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
        self._record.bytes_sent += len(HEARTBEAT)
        self._sent_at, self.sending_since = self._clock(), None

    async def _after_beat(self) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            await beat

    async def finish(self) -> None:
        self._finished = True
        await self._after_beat()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, body: ErrorBody) -> None:
        """End a stream that can't go on: an error event, and nothing that says that it is whole."""
        if self._record.outcome is Outcome.OK or self._record.outcome is None:
            self._record.outcome = Outcome.REPLICA_FAULT
        await self.write(self._form.error_event(body))
        await self.finish()
