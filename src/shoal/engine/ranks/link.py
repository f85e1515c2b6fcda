"""Messages between the executor and a rank, and the framed stream that carries them.

    executor ── Setup ─► rank: loads ── Loaded ─► Allocate ─► Ready          start-up
             ── Execute(ticket) ─► ── Done(ticket) ─►                        a step
             ── Report ─► ── Reported ─►                                     questions, between steps
             ── Stop ─►                                                      the end; so is a closed stream

Typed msgpack over a socket pair (ranks of this process) or TCP (ranks started by others); never pickle. A frame is
four bytes of length, little-endian, and that many bytes.
"""

import socket
import struct
import threading

import msgspec

from shoal.engine.messages import StepCommand
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.traffic import Volume
from shoal.policy.batching.plan import StepResult
from shoal.policy.experts import LayerLoad
from shoal.specs.layout import Layout

MAX_FRAME = 1 << 30
_HEADER = struct.Struct("<I")
_SEND_BUFFER = 4 << 20
"""Bytes; a command whose prompts fit never waits for a rank that is computing."""


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All that a rank has to know to begin."""

    rank: int
    layout: Layout
    options: EngineOptions
    model_path: str
    threads: int
    collectives: str
    """`shm`, `gloo` or `nccl`."""
    segments: dict[str, int] = {}
    """Descriptors of the shared memory of this rank's groups, by axis."""
    board: int | None = None
    """Descriptor of the heartbeat board; None: beats go over the link."""
    beat_seconds: float = 0.25
    store: str | None = None
    """host:port of the store where torch.distributed's ranks meet."""
    oversubscribed: bool = False
    """More ranks than cores: waiting never spins."""
    parent: int | None = None
    """Process that this rank must not outlive."""
    worker: str = "shoal.engine.ranks.rank:load"
    """module:function that prepares the rank's worker."""


class Allocate(msgspec.Struct, frozen=True, tag=True):
    num_blocks: int


class Execute(msgspec.Struct, frozen=True, tag=True):
    ticket: int
    command: StepCommand


class Report(msgspec.Struct, frozen=True, tag=True):
    """Ask for a `Reported`."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End in good order."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A heartbeat of a rank that shares no memory with the executor."""

    count: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The weights are in; what KV memory this rank could have."""

    num_blocks: int
    max_model_len: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class Done(msgspec.Struct, frozen=True, tag=True):
    ticket: int
    seconds: float
    """From the command to the end of its execution."""
    waited: float
    """Of these, spent waiting for other ranks."""
    result: StepResult | None = None
    """From the ranks that sample."""
    expert_loads: tuple[LayerLoad, ...] = ()
    """This rank's share, where the step asked for it."""


class Reported(msgspec.Struct, frozen=True, tag=True):
    traffic: tuple[Volume, ...]
    live_sequences: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The rank cannot go on; it exits after this."""

    kind: str
    """Name of the exception's class."""
    message: str
    traceback: str
    missing: int | None = None
    """The rank that this one waited for in vain."""


ToRank = Setup | Allocate | Execute | Report | Stop
FromRank = Loaded | Ready | Done | Reported | Failed | Beat

_encoder = msgspec.msgpack.Encoder()
_to_rank = msgspec.msgpack.Decoder(ToRank)
_from_rank = msgspec.msgpack.Decoder(FromRank)


class LinkClosed(Exception):
    """The other side is gone."""


def frame(message: ToRank | FromRank) -> bytes:
    """A message as bytes on the wire. Encode once, send to many."""
    body = _encoder.encode(message)
    return _HEADER.pack(len(body)) + body


class RankEnd:
    """The rank's side of the link: blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(True)
        # The main thread answers, the pulse may beat: frames must not mix.
        self._sending = threading.Lock()

    def receive(self) -> ToRank:
        """The next message. Raises LinkClosed at the stream's end, msgspec.DecodeError for what is no message."""
        (length,) = _HEADER.unpack(self._exactly(_HEADER.size))
        if length > MAX_FRAME:
            raise LinkClosed(f"a frame of {length} bytes; at most {MAX_FRAME} are accepted")
        return _to_rank.decode(self._exactly(length))

    def send(self, message: FromRank) -> None:
        try:
            with self._sending:
                self.sock.sendall(frame(message))
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                got = self.sock.recv_into(view)
            except OSError as error:
                raise LinkClosed(str(error)) from error
            if not got:
                raise LinkClosed("the executor closed the link")
            view = view[got:]
        return data


class ExecutorEnd:
    """The executor's side: sends with a deadline, reads whatever has come."""

    def __init__(self, sock: socket.socket, send_timeout: float) -> None:
        self.sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        # The timeout is for sends; reads happen when there is something to read.
        sock.settimeout(send_timeout)
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Raises LinkClosed when the rank is gone or has not read for too long."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def messages(self) -> list[FromRank]:
        """What has come since the last call; call when the socket is readable. Raises LinkClosed at the end."""
        try:
            data = self.sock.recv(1 << 18)
        except OSError as error:
            raise LinkClosed(str(error)) from error
        if not data:
            raise LinkClosed("the rank closed the link")
        self._buffer += data
        found: list[FromRank] = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if length > MAX_FRAME:
                raise LinkClosed(f"a frame of {length} bytes; at most {MAX_FRAME} are accepted")
            if len(self._buffer) < end:
                break
            found.append(_from_rank.decode(self._buffer[_HEADER.size : end]))
            del self._buffer[:end]
        return found

    def close(self) -> None:
        self.sock.close()
