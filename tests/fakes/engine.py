"""An engine that does as it's told: OpenAI's API on a real socket, with latencies, limits, faults, a prefix cache.

It generates deterministically: the next token is a function of all tokens before it, so that a stream continued
elsewhere can be compared with one that was not. Text tokens are four bytes of the prompt's text.
"""

import asyncio
import contextlib
import hashlib
import json
import struct
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import vendors

BLOCK = 16
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Fault:
    """What goes wrong. `after`: chunks of a stream that come first."""

    kind: str
    """reset, garbage, hang, end (a clean end without [DONE]), error (an error event), status, slow"""
    after: int = 0
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before it, where nothing comes first."""
    headed: bool = False
    """The head of a stream comes first, and no event."""


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


class Gone(Exception):
    """The client left."""


def tokens_of(text: str) -> list[int]:
    data = text.encode()
    return [
        int.from_bytes(data[i : i + 4].ljust(4, b"\0"), "little") % 50_000 + 100 for i in range(0, len(data), 4)
    ]


def next_token(tokens: list[int]) -> int:
    digest = hashlib.blake2b(struct.pack(f"<{len(tokens)}i", *tokens), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 90 + 1


def text_of(token: int) -> str:
    return f" w{token}"


def expected_text(prompt: list[int], count: int) -> str:
    """What any fake engine generates for a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return "".join(text_of(t) for t in tokens[len(prompt) :])


class FakeEngine:
    """Start with `await engine.start()`; change its attributes at any time."""

    def __init__(self, name: str, model: str = "fake", port: int = 0) -> None:
        self.name, self.model, self.port = name, model, port
        self.prefill_rate = 200_000.0
        self.decode_seconds = 0.001
        self.decode_slope = 0.0
        """Seconds that each running request adds to a step of all."""
        self.max_running = 10_000
        self.cache_blocks = 10_000
        self.cached_tokens = "real"
        """real, none (not reported), zero, all (as a wrong split does)"""
        self.prefix_caching = True
        self.fault: Fault | None = None
        self.faults: deque[Fault] = deque()
        """One request each, before `fault`."""
        self.tokenized = 0
        self.spaced = False
        """Its JSON has spaces, as that of engines in plain Python has."""
        self.counts = True
        """It says how many tokens it computed."""
        self.heartbeat = 0.0
        """Streams begin with comments, so many seconds apart, until the prompt is computed; 0: no."""
        self.padding = ""
        """Added to the text of every streamed token."""
        self.ready = True
        self.seen: list[Seen] = []
        self.running = self.waiting = self.peak = self.completed = self.disconnects = 0
        self.generated = self.prompted = 0
        self.held_kv: dict[str, float] = {}
        """Request ids whose KV waits for a decode replica."""
        self.released_kv: list[str] = []
        self.peers: dict[str, FakeEngine] = {}
        self.cache: OrderedDict[bytes, None] = OrderedDict()
        self.on_stored: Any = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[Any]] = set()
        self._prefilling = asyncio.Lock()
        self._slots: asyncio.Condition = asyncio.Condition()
        self.frozen = asyncio.Event()
        self.frozen.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> int:
        return sum(s.path.startswith("/v1/") and bool(s.body) for s in self.seen)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def start(self) -> "FakeEngine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuse connections and cut those there are: what a killed process looks like."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def reset_cache(self) -> None:
        self.cache.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, Gone):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        await self.frozen.wait()
        if method == "GET":
            await self._get(writer, path)
            return True
        body = json.loads(raw)
        if path == "/tokenize":
            self.tokenized += 1
            self._json(writer, 200, {"tokens": self._prompt(body)})
            return True
        self.seen.append(Seen(path, headers, body, time.monotonic()))
        fault = self.faults.popleft() if self.faults else self.fault
        watch = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(self._generate(writer, path, headers, body, fault))
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.disconnects += 1
                raise Gone
            if isinstance(work.exception(), ConnectionError):
                self.disconnects += 1
            return work.result()
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)

    async def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/stats":
            capacity = self.cache_blocks * BLOCK
            stats = {
                "running": self.running,
                "waiting": self.waiting,
                "kv_usage": min(1.0, len(self.cache) * BLOCK / capacity),
                "kv_capacity_tokens": capacity,
                "generated_tokens": self.generated,
                "prompt_tokens": self.prompted,
            }
            self._json(writer, 200, stats)
        elif path == "/v1/models":
            self._json(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            self._json(writer, 200 if self.ready else 503, {"status": "ok"})
        await writer.drain()

    def _json(
        self, writer: asyncio.StreamWriter, status: int, value: object, headers: dict[str, str] | None = None
    ) -> None:
        body = self._dumped(value)
        extra = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        )
        writer.write(head.encode() + body)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            parts = (
                [one] if isinstance(one, int) else one if isinstance(one, list) else tokens_of(one)
                for one in prompt
            )
            return [token for part in parts for token in part]
        if isinstance(prompt, str):
            return tokens_of(prompt)
        if "messages" not in body:
            return tokens_of(vendors.prompt_text(body))
        return tokens_of("".join(f"<{m['role']}>{m['content']}" for m in body["messages"]))

    def _lookup(self, tokens: list[int]) -> int:
        """Tokens of the prefix that are cached; stores the rest."""
        chain, link = [], b""
        for i in range(0, len(tokens) - len(tokens) % BLOCK, BLOCK):
            link = hashlib.blake2b(link + repr(tokens[i : i + BLOCK]).encode(), digest_size=16).digest()
            chain.append(link)
        hit = 0
        if self.prefix_caching:
            while hit < len(chain) and chain[hit] in self.cache:
                hit += 1
        if self.on_stored is not None and hit < len(chain):
            self.on_stored(chain, hit, tokens)
        for link in reversed(chain):
            self.cache[link] = None
            self.cache.move_to_end(link)
        while len(self.cache) > self.cache_blocks:
            self.cache.popitem(last=False)
        return min(hit * BLOCK, len(tokens) - 1)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            async with self._slots:
                await self._slots.wait_for(lambda: self.running < self.max_running)
                self.running += 1
        finally:
            self.waiting -= 1
        self.peak = max(self.peak, self.running)
        try:
            yield
        finally:
            async with self._slots:
                self.running -= 1
                self._slots.notify()

    async def _generate(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
        fault: Fault | None,
    ) -> bool:
        if fault is not None and not fault.after:
            await asyncio.sleep(fault.delay)
            if fault.headed and body.get("stream"):
                writer.write(_STREAM_HEAD)
                await self._break(writer, fault)
                return False
            if fault.kind == "reset":
                writer.transport.abort()
                return False
            if fault.kind == "garbage":
                writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
                return False
            if fault.kind == "hang":
                await asyncio.sleep(3600)
            if fault.kind == "status":
                error = {"message": f"fault {fault.status}", "type": "fault", "param": None, "code": None}
                self._json(writer, fault.status, {"error": error}, fault.headers)
                await writer.drain()
                return True
        path = path.rstrip("/")
        if path in vendors.TOOLS:
            self._json(writer, 200, vendors.tool_answer(path, self.model, len(self._prompt(body))))
            return True
        if body.get("model") != self.model or (
            "messages" not in body and path not in vendors.STREAMED and "prompt" not in body
        ):
            self._json(writer, 404, {"error": {"message": "no such model", "type": "invalid_request_error"}})
            return True
        prompt = self._prompt(body)
        async with self._slot():
            hit = self._lookup(prompt)
            self.prompted += len(prompt)
            early = self.heartbeat and body.get("stream")
            async with self._prefilling:
                seconds = (len(prompt) - hit) / self.prefill_rate
                if early:
                    writer.write(_STREAM_HEAD)
                    for _ in range(int(seconds / self.heartbeat) + 1):
                        self._piece(writer, b": ping\n\n")
                        await asyncio.sleep(min(seconds, self.heartbeat))
                    if fault is not None and fault.kind == "error" and not fault.after:
                        await self._break(writer, fault)
                        return False
                else:
                    await asyncio.sleep(seconds)
            if path in vendors.STREAMED:
                return await self._answer_vendor(writer, path, body, prompt, hit, fault)
            return await self._answer(writer, path, body, prompt, hit, fault)

    def _usage(self, prompt: int, output: int, hit: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }
        cached = {"real": hit, "zero": 0, "all": prompt}.get(self.cached_tokens)
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        body: dict[str, Any],
        prompt: list[int],
        hit: int,
        fault: Fault | None,
    ) -> bool:
        chat = path.endswith("chat/completions")
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        resumed: list[int] = body.get("resume_token_ids") or []
        tokens = [*prompt, *resumed]
        made: list[int] = []
        transfer = self._transfer(body)
        base = {"id": f"{self.name}-{len(self.seen)}", "created": 1, "model": self.model}
        streams = bool(body.get("stream"))
        if streams and not self.heartbeat:
            writer.write(_STREAM_HEAD)
        for place in range(limit - len(resumed)):
            await self.frozen.wait()
            if fault is not None and fault.after and place == fault.after and await self._break(writer, fault):
                return False
            if place or not streams:
                await asyncio.sleep(self.decode_seconds + self.decode_slope * self.running)
            token = next_token(tokens)
            tokens.append(token)
            made.append(token)
            self.generated += 1
            if streams:
                finish = "length" if len(made) + len(resumed) == limit else None
                self._event(writer, base | self._chunk(chat, body, prompt, token, place, finish))
                await writer.drain()
        usage = self._usage(len(prompt), len(made) + len(resumed), hit)
        self.completed += 1
        if streams:
            if self.counts and (body.get("stream_options") or {}).get("include_usage"):
                kind = "chat.completion.chunk" if chat else "text_completion"
                self._event(writer, base | {"object": kind, "choices": [], "usage": usage})
            self._piece(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        else:
            text = "".join(text_of(t) for t in made)
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            kind = "chat.completion" if chat else "text_completion"
            answer = base | {"object": kind, "choices": [choice]} | ({"usage": usage} if self.counts else {})
            if transfer is not None:
                answer["kv_transfer_params"] = transfer
            self._json(writer, 200, answer)
        await writer.drain()
        return True

    async def _answer_vendor(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        body: dict[str, Any],
        prompt: list[int],
        hit: int,
        fault: Fault | None,
    ) -> bool:
        shape = vendors.Responses if path == "/v1/responses" else vendors.Messages
        answer = shape(f"{self.name}-{len(self.seen)}", self.model, len(prompt), hit)
        limit = body.get("max_output_tokens") or body.get("max_tokens") or 16
        streams, made, text = bool(body.get("stream")), list(prompt), ""
        if streams:
            writer.write(_STREAM_HEAD)
            for event in answer.opening():
                self._named(writer, event)
            if fault is not None and fault.kind == "error" and not fault.after:
                await self._break(writer, fault)
                return False
        for place in range(limit):
            if fault is not None and fault.after and place == fault.after and await self._break(writer, fault):
                return False
            await asyncio.sleep(self.decode_seconds)
            made.append(next_token(made))
            text += text_of(made[-1])
            self.generated += 1
            if streams:
                self._named(writer, answer.token(text_of(made[-1])))
                await writer.drain()
        self.completed += 1
        if streams:
            for event in answer.closing(text, limit):
                self._named(writer, event)
            writer.write(b"0\r\n\r\n")
        else:
            self._json(writer, 200, answer.whole(text, limit))
        await writer.drain()
        return True

    def _named(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        self._piece(writer, b"event: " + event["type"].encode() + b"\ndata: " + self._dumped(event) + b"\n\n")

    async def _break(self, writer: asyncio.StreamWriter, fault: Fault) -> bool:
        await writer.drain()
        if fault.kind == "reset":
            writer.transport.abort()
        elif fault.kind == "garbage":
            writer.write(b"\xff\xfe not a chunk\r\n\r\n\x00")
        elif fault.kind == "end":
            writer.write(b"0\r\n\r\n")
        elif fault.kind == "error":
            error = {"message": "engine died", "type": "server_error", "code": fault.status}
            self._event(writer, {"type": "error", "error": error})
            writer.write(b"0\r\n\r\n")
        elif fault.kind == "hang":
            await asyncio.sleep(3600)
        else:
            return False
        await writer.drain()
        return True

    def _chunk(
        self, chat: bool, body: dict[str, Any], prompt: list[int], token: int, place: int, finish: str | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        if chat:
            delta = {"role": "assistant"} if place == 0 else {}
            choice["delta"] = delta | {"content": text_of(token) + self.padding}
        else:
            choice["text"] = text_of(token)
        choice |= {"logprobs": None, "finish_reason": finish}
        if body.get("return_token_ids"):
            choice["token_ids"] = [token]
            if place == 0 and not chat:
                choice["prompt_token_ids"] = prompt
        chunk: dict[str, Any] = {
            "object": "chat.completion.chunk" if chat else "text_completion",
            "choices": [choice],
        }
        if chat and place == 0 and body.get("return_token_ids"):
            chunk["prompt_token_ids"] = prompt
        if (body.get("stream_options") or {}).get("include_usage"):
            chunk["usage"] = None
        return chunk

    def _piece(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")

    def _event(self, writer: asyncio.StreamWriter, value: object) -> None:
        self._piece(writer, b"data: " + self._dumped(value) + b"\n\n")

    def _dumped(self, value: object) -> bytes:
        return json.dumps(value, separators=(", ", ": ") if self.spaced else (",", ":")).encode()

    def _transfer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The split's two ends: hold KV for a decode replica, or take it from the prefill replica."""
        params = body.get("kv_transfer_params")
        if not params:
            return None
        if params.get("do_remote_decode"):
            key = f"{self.name}/{len(self.seen)}"
            self.held_kv[key] = time.monotonic()
            return {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_engine_id": self.name,
                "remote_block_ids": [1, 2],
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "remote_request_id": key,
            }
        source = self.peers.get(params.get("remote_engine_id", ""))
        if source is not None and source.held_kv.pop(params["remote_request_id"], None) is not None:
            source.released_kv.append(params["remote_request_id"])
        return None
