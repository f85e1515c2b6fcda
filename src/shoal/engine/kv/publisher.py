"""KV events for the world: what a replica's cache gained and lost, over ZeroMQ in vLLM's format.

    PUB     [topic, sequence (8 bytes, big-endian), batch]      at the endpoint
    ROUTER  asked [identity, "", first wanted], answers [identity, "", sequence, batch]* and [identity, "", -1, ""]
                                                                at the port after it

A batch is the msgpack array `[time, events, lane]`, an event a map with `type`. The last 10,000 batches can be had
again. A process that starts begins at sequence 0: whoever follows forgets what was before.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
import zmq

from shoal.engine.errors import EngineError
from shoal.policy.batching.events import KvEvent

KEPT_BATCHES = 10_000
_HIGH_WATER = 100_000
_POLL_MS = 200
_END = (-1).to_bytes(8, "big", signed=True)


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """One message's payload."""

    ts: float
    """Unix time."""
    events: Sequence[KvEvent]
    data_parallel_rank: int | None = None


class KvEventPublisher:
    """`publish` from one thread at a time; `close` once. The replay socket has a thread of its own."""

    def __init__(self, endpoint: str, topic: str = "kv-events") -> None:
        """Listens at `endpoint` (`tcp://host:port`) and the port after it. Raises EngineError if it can't."""
        parts = urlsplit(endpoint)
        assert parts.port is not None
        self._topic = topic.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._lock = threading.Lock()
        self._next = 0
        self._closed = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._publisher = self._bound(zmq.PUB, endpoint)
            self._router = self._bound(zmq.ROUTER, f"tcp://{parts.hostname}:{parts.port + 1}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise EngineError(f"kv_events: cannot publish at {endpoint} and the port after it: {error}") from None
        self._thread = threading.Thread(target=self._answer, name="shoal-kv-events", daemon=True)
        self._thread.start()

    def _bound(self, kind: int, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        return socket

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send one batch. Never blocks: a subscriber that is too slow misses messages, sees the gap, and asks."""
        payload = self._encoder.encode(EventBatch(time.time(), events))
        with self._lock:
            sequence, self._next = self._next, self._next + 1
            self._kept.append((sequence, payload))
        with contextlib.suppress(zmq.Again):
            self._publisher.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)

    def _answer(self) -> None:
        while not self._closed.is_set():
            try:
                if not self._router.poll(_POLL_MS):
                    continue
                frames = self._router.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue
                start = int.from_bytes(frames[2], "big")
                with self._lock:
                    wanted = [kept for kept in self._kept if kept[0] >= start]
                for sequence, payload in wanted:
                    self._router.send_multipart((frames[0], b"", sequence.to_bytes(8, "big"), payload))
                self._router.send_multipart((frames[0], b"", _END, b""))
            except zmq.ZMQError:
                if self._closed.is_set():
                    return

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2 * _POLL_MS / 1000 + 1.0)
        self._context.destroy(linger=0)
