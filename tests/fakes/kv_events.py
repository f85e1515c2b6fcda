"""A fake engine's KV events on real ZMQ sockets, in vLLM's wire format."""

import asyncio
import contextlib
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from engine import BLOCK, FakeEngine

END = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """Announces what its engine's cache stores. `lose` numbers are never sent live, `keep` bounds the replay."""

    def __init__(self, engine: FakeEngine, *, maps: bool = True, hash_seed: int = 0, keep: int = 10_000) -> None:
        self._engine = engine
        self._maps = maps
        self._seed = hash_seed
        self._keep = keep
        self.sequence = 0
        self.lose: set[int] = set()
        self.sent: list[tuple[int, bytes]] = []
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        replay = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.replay_endpoint = f"tcp://127.0.0.1:{replay}"
        self._outbox: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._replaying())]
        engine.on_stored = self.stored

    def _name(self, link: bytes) -> int | bytes:
        value = int.from_bytes(link[:7], "little") ^ self._seed
        return value.to_bytes(8, "big") if self._maps else value

    def stored(self, chain: list[bytes], start: int, tokens: list[int]) -> None:
        event = {
            "block_hashes": [self._name(link) for link in chain[start:]],
            "parent_block_hash": self._name(chain[start - 1]) if start else None,
            "token_ids": tokens[start * BLOCK : len(chain) * BLOCK],
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
        }
        self.publish("BlockStored", event)

    def cleared(self) -> None:
        self._engine.reset_cache()
        self.publish("AllBlocksCleared", {})

    def restart(self) -> None:
        """Another process: nothing cached, numbers from zero."""
        self._engine.reset_cache()
        self.sequence = 0
        self.sent.clear()

    def publish(self, kind: str, fields: dict[str, Any]) -> None:
        event = {"type": kind} | fields if self._maps else [kind, *fields.values()]
        payload = msgspec.msgpack.encode([0.0, [event], 0])
        number, self.sequence = self.sequence, self.sequence + 1
        self.sent = [*self.sent, (number, payload)][-self._keep :]
        if number not in self.lose:
            self._outbox.put_nowait((number, payload))

    async def _send(self) -> None:
        while True:
            number, payload = await self._outbox.get()
            await self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def _replaying(self) -> None:
        while True:
            identity, _, start = await self._router.recv_multipart()
            for number, payload in self.sent:
                if number >= int.from_bytes(start, "big"):
                    await self._router.send_multipart([identity, b"", number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([identity, b"", END, b""])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
