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

    @property
    def faulty(self) -> bool:
        """Whether its answer may be cut by its own doing."""
        return self.weather is not None or self.leaves_after is not None or self.dawdles > 0

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Received:
    """What came back on one call."""

    status: int = 0
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
    def __init__(self, call: Call, received: Received) -> None:
        self._call, self._received = call, received
        self._parser = httptools.HttpResponseParser(self)
        self.ended = asyncio.Event()
        self.transport: Any = None
        self._dawdled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._received.whole:
            self._received.surplus += len(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._received.lost = f"not HTTP: {error}"
            self.ended.set()
        if self._call.dawdles and not self._dawdled:
            self._dawdled = True
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(self._call.dawdles, self.transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._received.whole and self._received.lost is None:
            self._received.lost = str(exc) if exc is not None else "closed"
        self.ended.set()

    def on_headers_complete(self) -> None:
        self._received.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._received.body += body

    def on_message_complete(self) -> None:
        self._received.whole = True
        self.ended.set()


async def send(network: Network, port: int, call: Call) -> Received:
    """Send one call on a connection of its own and wait for its end."""
    received = Received()
    started = network.loop.time()
    transport: Any = None
    try:
        async with asyncio.timeout(CALL_SECONDS if call.leaves_after is None else call.leaves_after):
            made = await network.connect(lambda: _Receiver(call, received), "127.0.0.1", port, call.weather)
            transport, receiver = made
            assert isinstance(receiver, _Receiver)
            body = json.dumps(call.body).encode()
            head = f"POST {call.path} HTTP/1.1\r\nhost: fleet\r\nx-request-id: {call.id}\r\n"
            transport.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            transport.write(body)
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
        received.seconds = network.loop.time() - started
        if transport is not None:
            transport.abort()
    return received


def draw_call(draws: random.Random, number: int, *, faulty: float = 0.15) -> Call:
    """A call as clients make them; a share is `faulty`."""
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
    call = Call(f"call-{number}", "/v1/chat/completions" if chat else "/v1/completions", body)
    if draws.random() < faulty:
        kind = draws.randrange(3)
        if kind == 0:
            call.leaves_after = draws.expovariate(1.0)
        elif kind == 1:
            call.dawdles = draws.uniform(0.1, 20.0)
        else:
            call.weather = Weather(reset=0.02, silence=0.01, lag=0.1)
            call.leaves_after = 40.0
    return call
