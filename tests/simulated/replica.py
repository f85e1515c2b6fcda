"""A simulated replica: OpenAI's API over the simulated network, with faults at every step of an answer."""

import asyncio
import json
import random
from typing import Any

import httptools

from simulated.generation import Answer, Crashes
from simulated.kv_feed import Feed
from simulated.model import BLOCK, prompt_of
from simulated.network import Network
from simulated.record import Journal
from simulated.vendor_generation import SHAPES, VendorAnswer

MODEL = "sim"


class _Connection(asyncio.Protocol):
    """One connection: requests are answered one after the other."""

    def __init__(self, replica: "SimulatedReplica") -> None:
        self.replica = replica
        self.transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body, self._id = b"", b"", ""
        self.lost = False
        self.task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, str, str, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._url, self._body, self._id = b"", b"", ""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._id = value.decode()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._waiting.append((self._id, self._parser.get_method().decode(), self._url.decode(), self._body))
        if self.task is None:
            self._next()

    def _next(self) -> None:
        if self._waiting and not self.lost:
            self.task = self.replica.run(self, *self._waiting.pop(0))
            self.task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, Crashes):
                self.replica.journal.note(self.replica.name, f"broken: {error!r}")
                raise error
            self.transport.abort()
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.task is not None:
            self.task.cancel()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def json(self, status: int, value: object, headers: str = "") -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}"
        self.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


class SimulatedReplica:
    """One process of an engine, from its start to its end."""

    def __init__(
        self,
        network: Network,
        name: str,
        port: int,
        *,
        draws: random.Random,
        journal: Journal,
        seeds: dict[str, Any],
        feed: Feed,
    ) -> None:
        self.network, self.name, self.port, self.draws, self.journal = network, name, port, draws, journal
        self.fault_rate = 0.0
        """Chance of a fault at each step of an answer."""
        self.slowness = 1.0
        self.running = self.generated = self.prompted = 0
        self.seeds, self.feed = seeds, feed
        """What each request was sampled with, by its id."""
        self.ready = True
        self._awake = asyncio.Event()
        self._awake.set()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._cached: set[tuple[int, ...]] = set()

    def listen(self) -> None:
        self.network.listen(lambda: _Connection(self), "127.0.0.1", self.port, None)
        self.journal.note(self.name, f"listens on {self.port}")

    def freeze(self, frozen: bool) -> None:
        """Its process is stopped: it takes connections and does nothing."""
        (self._awake.clear if frozen else self._awake.set)()

    def crash(self) -> None:
        """Its process is gone."""
        self.network.kill_host(self.port)
        for task in list(self._tasks):
            task.cancel()

    async def pause(self, seconds: float) -> None:
        """Take that long, or longer where the process is slow or stopped."""
        await asyncio.sleep(seconds * self.slowness * self.draws.uniform(0.5, 1.5))
        await self._awake.wait()

    def run(
        self, connection: _Connection, request_id: str, method: str, path: str, body: bytes
    ) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._serve(connection, request_id, method, path, body))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _serve(self, connection: _Connection, request_id: str, method: str, path: str, body: bytes) -> None:
        await self.pause(0.0005)
        if method == "GET":
            self._get(connection, path)
            return
        ask = json.loads(body)
        if path == "/tokenize":
            connection.json(200, {"tokens": prompt_of(ask)})
            return
        self.seeds[request_id] = ask.get("seed")
        kind = VendorAnswer if path in SHAPES else Answer
        await kind(self, connection, path, ask).run()

    def _get(self, connection: _Connection, path: str) -> None:
        if path == "/v1/models":
            connection.json(
                200, {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]}
            )
        elif path == "/metrics":
            gauges = {
                "shoal_requests_running": self.running,
                "shoal_requests_waiting": 0,
                "shoal_kv_usage_ratio": min(1.0, self.running / 32),
                "shoal_kv_blocks": 1000,
                "shoal_kv_block_tokens": 16,
                "shoal_generated_tokens_total": self.generated,
                "shoal_prompt_tokens_total": self.prompted,
            }
            text = "".join(f"{name} {value}\n" for name, value in gauges.items()).encode()
            connection.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(text) + text
            )
        else:
            connection.json(200 if self.ready else 503, {"status": "ok"})

    def hit(self, prompt: list[int]) -> int:
        """Tokens of a prompt that are cached; the rest is from now on."""
        size = len(prompt) - len(prompt) % BLOCK
        while size and tuple(prompt[:size]) not in self._cached:
            size -= BLOCK
        self._cached.update(tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK))
        self.feed.stored(prompt, size // BLOCK)
        return min(size, len(prompt) - 1)
