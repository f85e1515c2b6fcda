"""Clients of the simulated fleet: each call is sent once, and whatever comes back is kept."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httptools

from simulated.network import Network, Weather
from simulated.replica import MODEL

CALL_SECONDS = 240.0
"""No call may take longer, whatever happens: every wait of the gateway ends before."""


@dataclass
class Call:
    """What one client asks, and how it behaves."""

    id: str
    path: str
    body: dict[str, Any]
    weather: Weather | None = None
    """Of its connection; None: nothing is wrong with it."""
    leaves_after: float | None = None
    """Seconds after which it closes the connection."""
    dawdles: float = 0.0
    """Seconds for which it reads nothing, once something has come."""
    faulty: bool = False
    """Its answer may be cut by its own doing."""

    @property
    def vendor(self) -> bool:
        """Whether it is on the Responses or Messages API."""
        return self.path in ("/v1/responses", "/v1/messages")

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Received:
    """What came back on one call."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    """The HTTP message came to its end."""
    lost: str | None = None
    """How the connection ended before that."""
    surplus: int = 0
    """Bytes after the end."""
    left: bool = False
    late: bool = False
    seconds: float = 0.0


class _Receiver(asyncio.Protocol):
    """One connection, for one call after the other."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.ended = asyncio.Event()
        self.transport: Any = None
        self._call: Call | None = None
        self._received = Received()
        self.lost = False

    def begin(self, call: Call) -> Received:
        self._call, self._received = call, Received()
        self.ended.clear()
        return self._received

    @property
    def usable(self) -> bool:
        """Whether another call may be sent on it."""
        return not self.lost and self._received.whole and self._parser.should_keep_alive()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        received, call = self._received, self._call
        if call is None or received.whole:
            received.surplus += len(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            received.lost = f"not HTTP: {error}"
            self.ended.set()
        if call.dawdles:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(call.dawdles, self.transport.resume_reading)
            call.dawdles = 0.0

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self._received.whole and self._received.lost is None:
            self._received.lost = str(exc) if exc is not None else "closed"
        self.ended.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._received.headers[name.lower().decode()] = value.decode()

    def on_headers_complete(self) -> None:
        self._received.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._received.body += body

    def on_message_complete(self) -> None:
        self._received.whole = True
        self.ended.set()


class Client:
    """Sends calls, on one connection as long as it lasts."""

    def __init__(self, network: Network, port: int, draws: random.Random) -> None:
        self._network, self._port, self._draws = network, port, draws
        self._kept: _Receiver | None = None

    async def send(self, call: Call) -> Received:
        """Send one call and wait for its end."""
        received, started = Received(), self._network.loop.time()
        receiver: _Receiver | None = None
        try:
            async with asyncio.timeout(CALL_SECONDS if call.leaves_after is None else call.leaves_after):
                receiver = await self._connection(call)
                received = receiver.begin(call)
                await self._write(receiver, call)
                await receiver.ended.wait()
                if received.whole:
                    # What comes after the end of an answer is an answer too many.
                    await asyncio.sleep(0.05)
        except TimeoutError:
            received.left = call.leaves_after is not None
            received.late = not received.left
        except OSError as error:
            received.lost = f"no connection: {error.strerror}"
        finally:
            received.seconds = self._network.loop.time() - started
            if receiver is not None and receiver.usable and not call.faulty:
                self._kept = receiver
            elif receiver is not None:
                receiver.transport.abort()
        return received

    async def _connection(self, call: Call) -> _Receiver:
        kept, self._kept = self._kept, None
        if kept is not None and not call.faulty and not kept.transport.is_closing():
            return kept
        if kept is not None:
            kept.transport.abort()
        _, receiver = await self._network.connect(_Receiver, "127.0.0.1", self._port, call.weather)
        assert isinstance(receiver, _Receiver)
        return receiver

    async def _write(self, receiver: _Receiver, call: Call) -> None:
        """The request, sometimes with pauses in it."""
        body = json.dumps(call.body).encode()
        head = f"POST {call.path} HTTP/1.1\r\nhost: fleet\r\nx-request-id: {call.id}\r\n"
        data = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        while len(data) > 1 and self._draws.random() < 0.2:
            size = self._draws.randrange(1, len(data))
            receiver.transport.write(data[:size])
            data = data[size:]
            await asyncio.sleep(self._draws.expovariate(5.0))
        receiver.transport.write(data)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.transport.abort()


def _draw_vendor_call(draws: random.Random, number: int) -> Call:
    prompt = f"conversation {draws.randrange(6)} " + "and so on " * draws.randrange(20)
    limit, streams = draws.choice((1, 2, 8, 24)), draws.random() < 0.7
    body: dict[str, Any] = {"model": MODEL, "stream": streams, "temperature": 0}
    if draws.random() < 0.5:
        return Call(f"call-{number}", "/v1/responses", body | {"input": prompt, "max_output_tokens": limit})
    messages = [{"role": "user", "content": prompt}]
    return Call(f"call-{number}", "/v1/messages", body | {"messages": messages, "max_tokens": limit})


def _draw_chunked_call(draws: random.Random, number: int) -> Call:
    chat = draws.random() < 0.5
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": draws.choice((1, 2, 8, 24, 48)),
        "stream": draws.random() < 0.7,
    }
    prompt = f"conversation {draws.randrange(6)} " + "and so on " * draws.randrange(20)
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    sampling = draws.random()
    if sampling < 0.6:
        body["temperature"] = 0
    elif sampling < 0.8:
        body["seed"] = draws.randrange(1000)
    if body["stream"] and draws.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    return Call(f"call-{number}", "/v1/chat/completions" if chat else "/v1/completions", body)


def draw_call(draws: random.Random, number: int, *, faulty: float = 0.15) -> Call:
    """A call as clients make them; a share is `faulty`."""
    call = (_draw_vendor_call if draws.random() < 0.15 else _draw_chunked_call)(draws, number)
    if draws.random() < faulty:
        call.faulty = True
        kind = draws.randrange(3)
        if kind == 0:
            call.leaves_after = draws.expovariate(1.0)
        elif kind == 1:
            call.dawdles = draws.uniform(0.1, 20.0)
        else:
            call.weather = Weather(reset=0.02, silence=0.01, lag=0.1)
            call.leaves_after = 40.0
    return call
