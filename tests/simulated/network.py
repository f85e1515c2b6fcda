"""An in-memory network: listeners, and connections with latency, bandwidth and faults, drawn from one seed.

    transport ─► wire (segments, in order, each with its time of arrival) ─► transport of the peer

A connection is reset, goes silent (half open: neither side hears of it) or is slow; whole hosts can be cut off.
What is written arrives in pieces of any size.
"""

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulated.record import Journal
from simulated.wires import Transport, Wire


@dataclass
class Weather:
    """What goes wrong on the network. Rates are chances per connection or per segment."""

    refuse: float = 0.0
    vanish: float = 0.0
    """A connection attempt gets no answer at all."""
    reset: float = 0.0
    """Per segment: both ends get a reset instead of it."""
    silence: float = 0.0
    """Per segment: from here on nothing arrives, for some seconds or for good."""
    lag: float = 0.0
    """Per segment: it arrives late, and all that follows."""


@dataclass
class Listener:
    """A bound port; stands for the socket, too."""

    network: "Network"
    port: int
    factory: Callable[[], asyncio.BaseProtocol] | None = None
    """None: bound, but nobody accepts."""
    open: bool = True

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def fileno(self) -> int:
        return self.port

    @property
    def family(self) -> int:
        return 2

    def close(self) -> None:
        """As a server or a socket: the port is free again, what was accepted lives on."""
        self.open = False
        if self.network.listeners.get(self.port) is self:
            del self.network.listeners[self.port]

    async def wait_closed(self) -> None: ...

    @property
    def sockets(self) -> tuple["Listener", ...]:
        return (self,)


class Network:
    """Every host is a port of 127.0.0.1."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: str, journal: Journal) -> None:
        self.loop, self.journal = loop, journal
        self.draws = random.Random(f"{seed}/network")
        self.listeners: dict[int, Listener] = {}
        self.weather: dict[int, Weather] = {}
        """Per listening port."""
        self.cut: set[int] = set()
        """Ports that nothing reaches now."""
        self.transports: dict[Transport, None] = {}
        """Those that are open, in order of their making."""
        self._next_port = 20_000
        self._connections = 0

    def create_server(self, address: tuple[str, int], backlog: int = 0) -> Listener:
        """Like `socket.create_server`: a bound port, any free one."""
        self._next_port += 1
        listener = self.listeners[self._next_port] = Listener(self, self._next_port)
        return listener

    def free_ports(self) -> int:
        """Like `free_port_pair`."""
        self._next_port += 2
        return self._next_port - 1

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, sock: Any) -> Listener:
        if sock is not None:
            sock.factory = factory
            return sock
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        listener = self.listeners[port] = Listener(self, port, factory)
        return listener

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, own: Weather | None = None
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """`own`: the weather of this connection, instead of its port's."""
        draws, weather = self.draws, own or self.weather.get(port, Weather())
        latency = draws.uniform(0.0001, 0.002)
        await asyncio.sleep(latency)
        chance = draws.random()
        if port in self.cut or chance < weather.vanish:
            self.journal.note("network", f"a connection to {port} gets no answer")
            await asyncio.sleep(75)
            raise OSError(errno.ETIMEDOUT, "timed out")
        listener = self.listeners.get(port)
        if listener is None or listener.factory is None or chance < weather.vanish + weather.refuse:
            await asyncio.sleep(latency)
            raise OSError(errno.ECONNREFUSED, "refused")
        self._connections += 1
        number = self._connections
        rate = 10 ** draws.uniform(4.5, 8)
        wires = [Wire(self, port, f"{number}{way}", latency, rate, own) for way in "><"]
        client = Transport(self, wires[0], wires[1], (0, 50_000 + number), ("127.0.0.1", port))
        server = Transport(self, wires[1], wires[0], ("127.0.0.1", port), ("10.0.0.1", 50_000 + number))
        wires[0].sink, wires[1].sink = server, client
        server.bind(listener.factory())
        protocol = factory()
        made: asyncio.Future[None] = self.loop.create_future()
        wires[1].push(lambda: self._established(client, protocol, made))
        try:
            await made
        except asyncio.CancelledError:
            client.abort()
            raise
        return client, protocol

    def _established(self, client: Transport, protocol: asyncio.BaseProtocol, made: asyncio.Future[None]) -> None:
        if not made.done():
            client.bind(protocol)
            made.set_result(None)

    def on_host(self, port: int) -> list[Transport]:
        """The open server sides of connections to a port."""
        return [t for t in self.transports if t.local[1] == port]

    def kill_host(self, port: int) -> None:
        """End all of a process's connections as the kernel does when it is killed."""
        listener = self.listeners.get(port)
        if listener is not None:
            listener.close()
        for transport in self.on_host(port):
            transport.abort()

    def heal(self) -> None:
        """No more faults; what was silent for a while goes on."""
        self.weather.clear()
        self.cut.clear()
