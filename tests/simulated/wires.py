"""One direction of a connection, and a transport on two of them."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from simulated.network import Network, Weather

KERNEL_BYTES = 32 * 1024
"""What the sockets of both ends hold; more waits in the sender's transport."""
HIGH_BYTES = 32 * 1024
_ENDLESS = 1e9

Segment = tuple[float, bytes, Callable[[], None] | None]
"""When it arrives, its bytes, or what its arrival does."""


class Wire:
    """Carries segments in order. A segment waits for those before it, and for a reader that has paused."""

    def __init__(
        self, network: "Network", port: int, name: str, latency: float, rate: float, own: "Weather | None"
    ) -> None:
        self._network, self._port, self.name = network, port, name
        self._latency, self._rate, self._own = latency, rate, own
        self.sink: Transport
        self._segments: deque[Segment] = deque()
        self.bytes = 0
        """On their way."""
        self._free_at = 0.0
        self._silent_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, data: bytes) -> None:
        """Cut into pieces at random, each late by chance."""
        draws = self._network.draws
        while data:
            size = len(data) if draws.random() < 0.8 else draws.randint(1, len(data))
            piece, data = data[:size], data[size:]
            self._enqueue(piece, None)

    def push(self, action: Callable[[], None]) -> None:
        """Do it at the other end, after what was sent before."""
        self._enqueue(b"", action)

    def _enqueue(self, data: bytes, action: Callable[[], None] | None) -> None:
        now = self._network.loop.time()
        weather = self._own or self._network.weather.get(self._port)
        self._free_at = max(now, self._free_at) + len(data) / self._rate
        if weather is not None:
            chance = self._network.draws.random()
            if chance < weather.silence:
                self._go_silent(now)
            elif chance < weather.silence + weather.lag:
                self._free_at += self._network.draws.expovariate(2.0)
            elif chance < weather.silence + weather.lag + weather.reset and data:
                action, data = self._reset, b""
        self.bytes += len(data)
        self._segments.append((self._free_at + self._latency, data, action))
        self._arm()

    def _go_silent(self, now: float) -> None:
        draws = self._network.draws
        seconds = draws.choice((draws.uniform(0.5, 10.0), _ENDLESS))
        self._silent_until = max(self._silent_until, now + seconds)
        self._network.journal.note("network", f"wire {self.name} is silent for {seconds:.3f} s")

    def _reset(self) -> None:
        self._network.journal.note("network", f"connection {self.name} is reset")
        self.sink.peer.peer_reset()
        self.sink.peer_reset()

    def _arm(self) -> None:
        if self._timer is None and self._segments and not self.sink.paused:
            at = max(self._segments[0][0], self._silent_until)
            if at < _ENDLESS / 2:
                self._timer = self._network.loop.call_at(at, self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        if self._port in self._network.cut:
            self._timer = self._network.loop.call_later(0.2, self._deliver)
            return
        now = self._network.loop.time()
        if not self._segments or self.sink.paused or now < self._silent_until:
            self._arm()
            return
        _, data, action = self._segments.popleft()
        self.bytes -= len(data)
        if action is not None:
            action()
        elif data:
            self._network.journal.bytes(self.name, data)
            self.sink.receive(data)
            self.sink.peer.drained()
        self._arm()

    def resume(self) -> None:
        self._arm()

    def drop(self) -> None:
        """The data on its way is lost."""
        self._segments = deque(segment for segment in self._segments if segment[2] is not None)
        self.bytes = 0


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: "Network", out: Wire, into: Wire, local: Any, remote: Any) -> None:
        super().__init__()
        self._network, self.out, self._into = network, out, into
        self.local, self.remote = local, remote
        self._protocol: asyncio.Protocol | None = None
        self.paused = False
        self._closing = False
        self._lost = False
        self._eof_sent = False
        self._write_paused = False
        network.transports[self] = None

    @property
    def peer(self) -> "Transport":
        return self.out.sink

    def bind(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)
        protocol.connection_made(self)

    # From the wires.

    def receive(self, data: bytes) -> None:
        if self._lost or self._closing:
            # The kernel of a closed end answers data with a reset.
            if self._lost and not self.peer._lost:
                self.out.push(self.peer.peer_reset)
            return
        if self._protocol is not None:
            self._protocol.data_received(data)

    def peer_closed(self) -> None:
        if self._lost or self._closing or self._protocol is None:
            return
        if not self._protocol.eof_received():
            self.close()

    def peer_reset(self) -> None:
        if not self._lost:
            self._end(ConnectionResetError(104, "Connection reset by peer"))

    def drained(self) -> None:
        if self._write_paused and self.out.bytes <= HIGH_BYTES // 4:
            self._write_paused = False
            if not self._lost and self._protocol is not None:
                self._protocol.resume_writing()
        if self._closing and not self._lost and self.out.bytes <= KERNEL_BYTES:
            self._end(None)

    # asyncio's interface.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": self.local, "peername": self.remote}.get(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def is_reading(self) -> bool:
        return not self.paused and not self.is_closing()

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            self._into.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return max(0, self.out.bytes - KERNEL_BYTES)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def write(self, data: Any) -> None:
        if self.is_closing() or self._eof_sent:
            return
        self.out.send(bytes(data))
        if self.out.bytes > KERNEL_BYTES + HIGH_BYTES and not self._write_paused and self._protocol is not None:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_sent and not self.is_closing():
            self._eof_sent = True
            self.out.push(self.peer.peer_closed)

    def close(self) -> None:
        """What was written still arrives, then the peer sees the end."""
        if self.is_closing():
            return
        self._closing = True
        if not self._eof_sent:
            self.out.push(self.peer.peer_closed)
        # A paused reader would keep what comes in, and the end with it, for ever.
        self.resume_reading()
        if self.out.bytes <= KERNEL_BYTES:
            self._end(None)

    def abort(self) -> None:
        if self._lost:
            return
        self.out.drop()
        self.out.push(self.peer.peer_reset)
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._lost = self._closing = True
        self.paused = False
        self._network.transports.pop(self, None)
        self._into.resume()
        if self._protocol is not None:
            self._network.loop.call_soon(self._protocol.connection_lost, error)
