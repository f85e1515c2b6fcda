"""What all dialects share: a small HTTP client with deadlines, Prometheus text, the proof of readiness."""

import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

import msgspec

from shoal.fleet.adapters.listing import ModelCard, ModelCards, choose_card
from shoal.fleet.config import Pool
from shoal.fleet.index.zmq_stream import ZmqEvents
from shoal.fleet.launch.process import Command
from shoal.fleet.registry.contracts import RawEvents
from shoal.http.client import Endpoint
from shoal.policy.account import ReplicaStats
from shoal.policy.outcomes import LegFailed, Outcome, outcome_of_status

CHECK_SECONDS = 2.0
PROOF_SECONDS = 60.0
_NOT_THERE = frozenset({404, 405, 501})
_SAMPLE = re.compile(rb"^([A-Za-z_:][A-Za-z0-9_:]*)(\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class NotStartable(ValueError):
    """This engine can't be started here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a Prometheus page."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: bytes) -> list[Sample]:
    """The samples of a Prometheus page; lines that are none are passed over."""
    found = []
    for name, labels, value in _SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = dict(_LABEL.findall(labels.decode("utf-8", "replace"))) if labels else {}
        found.append(Sample(name.decode(), pairs, number))
    return found


class Gauges:
    """Samples by name, summed over labels (an engine with several lanes reports each)."""

    def __init__(self, text: bytes) -> None:
        self._values: dict[str, float] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        for sample in samples(text):
            self._values[sample.name] = self._values.get(sample.name, 0.0) + sample.value
            self._labels.setdefault(sample.name, sample.labels)

    def first(self, *names: str) -> float | None:
        """The value of the first name that is there: names differ between versions."""
        return next((self._values[name] for name in names if name in self._values), None)

    def whole(self, *names: str) -> int | None:
        value = self.first(*names)
        return None if value is None else int(value)

    def labels(self, name: str) -> Mapping[str, str]:
        return self._labels.get(name, {})


def _replay_endpoint(events: str) -> str:
    """The port after the publisher's; a local socket's name ends with the port it stands for."""
    if events.startswith("ipc://"):
        return f"tcp://127.0.0.1:{int(events.rpartition('-')[2]) + 1}"
    parts = urlsplit(events)
    assert parts.port is not None
    return f"{parts.scheme}://{parts.hostname}:{parts.port + 1}"


class HttpAdapter:
    """Base of the dialects' adapters; owns its connections, so `close` it."""

    health_path: ClassVar[bytes] = b"/health"
    metrics_path: ClassVar[bytes | None] = b"/metrics"

    def __init__(self, url: str, *, api_key: str | None = None, events: str | None = None) -> None:
        self.endpoint = Endpoint(url, api_key=api_key, max_idle=4)
        self._has_key = bool(api_key)
        self._events = ZmqEvents(events, _replay_endpoint(events)) if events is not None else None

    async def ready(self) -> bool:
        return await self.why_not_ready() is None

    async def why_not_ready(self) -> str | None:
        """Return what its health endpoint says against serving; None: nothing."""
        status, _ = await self.endpoint.get(self.health_path, seconds=CHECK_SECONDS)
        return self._refusal(status)

    def _refusal(self, status: int) -> str | None:
        """Return why a status isn't 200, and what to change; None: it is."""
        if status == 200:
            return None
        if status in (401, 403):
            if self._has_key:
                return f"it refuses the key that it is sent ({status}): check the variable that api_key_env names"
            return f"it demands a key ({status}): set api_key_env to the variable that holds it"
        if status in _NOT_THERE:
            path = self.health_path.decode()
            return f"{self.endpoint.url}{path} answers {status}: check the URL and the pool's `engine`"
        if status == 503:
            return "it says that it isn't ready (503)"
        return f"it answers {status} to a health check"

    async def stats(self) -> ReplicaStats:
        if self.metrics_path is None:
            return ReplicaStats()
        status, text = await self.endpoint.get(self.metrics_path, seconds=CHECK_SECONDS)
        if status != 200:
            raise LegFailed(outcome_of_status(status), f"metrics answered {status}")
        return self.read(Gauges(text))

    def read(self, gauges: Gauges) -> ReplicaStats:
        """The dialect's own: its names of our gauges."""
        return ReplicaStats()

    def kv_events(self) -> AsyncIterator[RawEvents] | None:
        return self._events.messages() if self._events is not None else None

    async def replay(self, start: int) -> list[RawEvents] | None:
        return await self._events.replay(start) if self._events is not None else None

    async def prove(self, model: str) -> None:
        """Generate one token; of a model that generates none, have one vector or score. Raises `LegFailed` or
        `TimeoutError` if that doesn't work.
        """
        body = msgspec.json.encode({"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0})
        status, answer = await self.endpoint.post(b"/v1/completions", body, seconds=PROOF_SECONDS)
        if status in _NOT_THERE:
            # An endpoint that speaks only chat.
            messages = [{"role": "user", "content": "Hello"}]
            body = msgspec.json.encode({"model": model, "messages": messages, "max_tokens": 1})
            status, answer = await self.endpoint.post(b"/v1/chat/completions", body, seconds=PROOF_SECONDS)
        if status != 200:
            if status in (400, *_NOT_THERE) and await self._pools(model):
                return
            told = answer[:300].decode("utf-8", "replace")
            raise LegFailed(outcome_of_status(status), f"asked for one token, it answered {status}: {told}")
        if b'"choices"' not in answer:
            raise LegFailed(Outcome.REPLICA_FAULT, "asked for one token, it gave none")

    async def _pools(self, model: str) -> bool:
        """Whether the replica gives a vector, or a score."""
        asks: tuple[tuple[bytes, dict[str, str], bytes], ...] = (
            (b"/v1/embeddings", {"input": "Hello"}, b'"embedding"'),
            (b"/v1/score", {"text_1": "Hello", "text_2": "Hello"}, b'"score"'),
        )
        for path, fields, word in asks:
            body = msgspec.json.encode({"model": model} | fields)
            status, answer = await self.endpoint.post(path, body, seconds=PROOF_SECONDS)
            if status == 200 and word in answer:
                return True
        return False

    async def find_model(self, names: Sequence[str]) -> ModelCard:
        """Return what it calls the model that goes by these names. Raises `LegFailed` or `TimeoutError`.

        An engine that lists nothing is taken to know the first name.
        """
        status, answer = await self.endpoint.get(b"/v1/models", seconds=CHECK_SECONDS)
        if status in _NOT_THERE:
            return ModelCard(id=names[0])
        if (problem := self._refusal(status)) is not None:
            raise LegFailed(outcome_of_status(status), problem)
        try:
            cards = msgspec.json.decode(answer, type=ModelCards).data
        except (msgspec.MsgspecError, UnicodeDecodeError):
            cards = []
        return choose_card(cards, names) if cards else ModelCard(id=names[0])

    def close(self) -> None:
        self.endpoint.close()
        if self._events is not None:
            self._events.close()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One replica to be started."""

    name: str
    pool: Pool
    port: int
    listener: socket.socket
    """Bound to `port`; engines that can't inherit it bind the port themselves, once this is closed."""
    threads: int
    kv_share: float | None
    """Of the memory that is free, for its KV cache; None: the engine's own rule."""
    api_key: str | None
    events_port: int | None
    """Where it shall publish KV events; the port after it is for replays."""
    tracing: bool = False
    """Whether it shall export spans."""
    kv_key: str | None = None
    """What replicas of this fleet that hand KV to each other share."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What an engine can do beyond answering."""

    usage_in_stream: bool = True
    returns_token_ids: bool = False
    resumes: bool = False
    any_request_id: bool = True
    """Whether it takes any text as `x-request-id`, or UUIDs only."""
    publishes: bool = False
    """KV events, when asked to."""
    events_address: str = "tcp://127.0.0.1:{port}"
    """Where a replica that was started here publishes them."""


class Dialect(Protocol):
    """An engine: how it is started, and what speaks to it."""

    traits: Traits

    @property
    def adapter(self) -> Callable[..., HttpAdapter]:
        """Makes what speaks to a replica: `(url, *, api_key, events)`."""

    def command(self, order: LaunchRequest) -> Command:
        """How to start it. Raises `NotStartable`."""


def flags(options: Mapping[str, object]) -> list[str]:
    """Options as a command line: `max_model_len: 2048` → `--max-model-len 2048`; true → the bare flag."""
    made: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-").lstrip("-")
        if value is True:
            made.append(flag)
        elif value is False:
            made.append("--no-" + flag.removeprefix("--"))
        elif value is not None:
            made += [flag, value if isinstance(value, str) else msgspec.json.encode(value).decode()]
    return made
