"""The sockets of a KV event stream as vLLM has them: a publisher, and a router that replays its last messages.

A message is `[topic, sequence, payload]`, the sequence eight bytes big-endian. A replay is asked for with the first
wanted sequence and ends with the sequence -1.
"""

import asyncio
from collections.abc import AsyncIterator

import zmq
import zmq.asyncio

from shoal.fleet.registry import RawEvents

_END = (-1).to_bytes(8, "big", signed=True)
_HIGH_WATER = 100_000


class ZmqEvents:
    """One engine's stream. `replay_endpoint` None: lost messages are lost."""

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, topic: str = "") -> None:
        self._endpoint = endpoint
        self._replay = replay_endpoint
        self._topic = topic.encode()
        self._context = zmq.asyncio.Context()

    async def messages(self) -> AsyncIterator[RawEvents]:
        """Messages as they come, for ever; the socket reconnects by itself when the engine restarts."""
        socket = self._context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, self._topic)
            socket.connect(self._endpoint)
            while True:
                parts = await socket.recv_multipart()
                if len(parts) == 3 and len(parts[1]) == 8:
                    yield RawEvents(int.from_bytes(parts[1], "big"), parts[2])
        finally:
            socket.close()

    async def replay(self, start: int, seconds: float = 2.0) -> list[RawEvents] | None:
        """Messages from `start` on that the engine still has; None if it doesn't answer within `seconds`."""
        if self._replay is None:
            return None
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._replay)
            messages: list[RawEvents] = []
            async with asyncio.timeout(seconds):
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
                while True:
                    parts = [part for part in await socket.recv_multipart() if part]
                    if not parts or parts[0] == _END:
                        return messages
                    messages.append(RawEvents(int.from_bytes(parts[0], "big"), parts[1] if len(parts) > 1 else b""))
        except TimeoutError:
            return None
        finally:
            socket.close()

    def close(self) -> None:
        self._context.destroy(linger=0)
