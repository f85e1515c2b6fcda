"""An OpenAI-compatible endpoint under measurement: what it can do, how it is asked, how its answers are read."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import msgspec

from shoal.bench.events import DONE, Event, Usage, error_text
from shoal.bench.prompts import SAMPLE, IdPrompts, TextPrompts
from shoal.http.client import Endpoint, HttpResponse
from shoal.http.sse import SseSplitter, payloads
from shoal.policy.outcomes import LegFailed, Outcome, outcome_of_status
from shoal.workload.load import Turn

Api = Literal["completions", "chat"]
PromptForm = Literal["auto", "ids", "text"]

_PROBE_SECONDS = 60.0
_BODY_LIMIT = 64 * 2**20
_decode = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


class BenchError(Exception):
    """The endpoint can't be measured: the message says why and what to do. A request that fails is a result."""


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Where an endpoint is and how to talk to it."""

    url: str
    model: str | None = None
    """None: the first one it lists."""
    api: Api = "completions"
    prompt_form: PromptForm = "auto"
    """Completions only: token ids of exact length, or text; auto: ids where the server takes them."""
    api_key: str | None = field(default=None, repr=False)
    extra_body: tuple[tuple[str, Any], ...] = ()
    """Fields added to every request, over the benchmark's own."""
    ignore_eos: bool = True
    """Pin the length of answers; switched off by the probe where the server refuses it."""
    temperature: float = 0.0
    session_keys: bool = False
    """Name every conversation in `prompt_cache_key`, for routers that go by sessions."""


@dataclass(slots=True)
class Reply:
    """What came back of one request; times on `time.perf_counter`'s clock."""

    sent: float
    ended: float = 0.0
    events: list[float] = field(default_factory=list)
    last: float | None = None
    outcome: Outcome = Outcome.OK
    status: int | None = None
    error: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    replica: str | None = None
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    """As the server says them, with `return_token_ids`."""
    done: bool = False


class _ModelCard(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_ModelCard] = []


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int] = []
    count: int | None = None


class Target:
    """An open endpoint. Use `async with await Target.open(...)`."""

    def __init__(self, options: TargetOptions, endpoint: Endpoint) -> None:
        self.options = options
        self._endpoint = endpoint
        self._path = b"/v1/chat/completions" if options.api == "chat" else b"/v1/completions"
        self.model = options.model or ""
        self.max_model_len: int | None = None
        self.token_pool: tuple[int, ...] = ()
        self._tokenize_field: str | None = None
        self.takes_ids = False
        self.returns_ids = False
        self.ignores_eos = options.ignore_eos
        self.template_tokens = 0
        """Tokens that the chat template puts around one message."""
        self.server = ""
        self.notes: list[str] = []

    @classmethod
    async def open(cls, options: TargetOptions) -> Self:
        """Connect and find out what the server can do; `BenchError` if it can't be measured."""
        from urllib.parse import urlsplit

        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BenchError(f"url: {options.url!r} is not accepted; expected http://host:port")
        base = options.url.rstrip("/").removesuffix("/v1")
        target = cls(options, Endpoint(base, api_key=options.api_key, max_idle=4096))
        try:
            await target._probe()
        except BaseException:
            target.close()
            raise
        return target

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._endpoint.close()

    # Prompts.

    @property
    def counts_tokens(self) -> bool:
        """It has a tokenizer endpoint."""
        return self._tokenize_field is not None

    def id_prompts(self, seed: str) -> IdPrompts:
        return IdPrompts(seed, self.token_pool)

    def text_prompts(self, seed: str) -> TextPrompts:
        return TextPrompts(seed, self.count if self.counts_tokens else None)

    async def count(self, text: str) -> int:
        """Tokens of a text, by the server's tokenizer."""
        body = {"model": self.model, self._tokenize_field or "prompt": text, "add_special_tokens": False}
        found = await self._tokenize(body)
        if found is None:
            raise BenchError(f"{self.options.url}: its /tokenize stopped answering")
        return len(found.tokens)

    def body(self, prompt: "list[int] | str | list[dict[str, str]]", turn: Turn, session: str = "") -> bytes:
        """The request of a turn; `prompt` is ids or text (completions) or messages (chat)."""
        fields: dict[str, Any] = {
            "model": turn.model or self.model,
            "messages" if self.options.api == "chat" else "prompt": prompt,
            "max_tokens": turn.output,
            "temperature": self.options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_eos:
            fields["ignore_eos"] = True
        if self.returns_ids:
            fields["return_token_ids"] = True
        if session and self.options.session_keys:
            fields["prompt_cache_key"] = session
        if turn.priority:
            fields["priority"] = turn.priority
        return _encode(fields | dict(self.options.extra_body))

    # Requests.

    async def send(self, body: bytes, deadline: float, *, keep_text: bool = False) -> Reply:
        """One request, read to its end. Never raises for what the server does; cancellation passes through.

        Args:
            deadline: seconds for all of it.
            keep_text: collect the answer, for the next turn of a conversation.
        """
        reply = Reply(sent=time.perf_counter())
        try:
            async with asyncio.timeout(deadline):
                answer = await self._endpoint.request(b"POST", self._path, body)
                with contextlib.closing(answer):
                    await self._read(answer, reply, keep_text)
        except TimeoutError:
            reply.outcome, reply.error = Outcome.DEADLINE, f"no whole answer within {deadline:g} s"
        except LegFailed as error:
            reply.outcome, reply.error = error.outcome, str(error)
        reply.ended = time.perf_counter()
        return reply

    async def _read(self, answer: HttpResponse, reply: Reply, keep_text: bool) -> None:
        reply.status = answer.status
        reply.replica = answer.header(b"x-shoal-replica").decode("latin-1") or None
        if answer.status != 200:
            reply.outcome = _client_outcome(answer.status)
            reply.error = f"HTTP {answer.status}: {error_text(await answer.whole(_BODY_LIMIT))}"
            return
        kind = answer.header(b"content-type")
        if not kind.startswith(b"text/event-stream"):
            await answer.whole(_BODY_LIMIT)
            raise LegFailed(Outcome.REPLICA_FAULT, f"not a stream but {kind.decode('latin-1') or 'of no type'}")
        splitter = SseSplitter()
        while piece := await answer.read():
            now = time.perf_counter()
            try:
                for payload in payloads(splitter.feed(piece)):
                    _take(payload, reply, now, keep_text)
            except (msgspec.DecodeError, ValueError) as error:
                raise LegFailed(Outcome.REPLICA_FAULT, f"not an event of the API: {error}") from None
            if reply.outcome is not Outcome.OK:
                return
        if reply.finish_reason is None and not reply.done:
            raise LegFailed(Outcome.REPLICA_FAULT, "the stream ended without a finish reason or [DONE]")

    # Probing.

    async def _probe(self) -> None:
        await self._probe_model()
        await self._probe_tokenizer()
        await self._probe_fields()
        if self.options.api == "chat" and self.counts_tokens and self._tokenize_field == "prompt":
            alone = await self.count("fish")
            message = [{"role": "user", "content": "fish"}]
            framed = await self._tokenize({"model": self.model, "messages": message})
            self.template_tokens = max(0, len(framed.tokens) - alone) if framed else 0

    async def _probe_model(self) -> None:
        status, raw = await self._small(b"GET", b"/v1/models")
        if status in (401, 403):
            raise BenchError(f"{self.options.url} wants an API key: {error_text(raw)}")
        cards: list[_ModelCard] = []
        if status == 200:
            with contextlib.suppress(msgspec.DecodeError):
                cards = msgspec.json.decode(raw, type=_Models).data
        if not self.model:
            if not cards:
                raise BenchError(
                    f"{self.options.url}/v1/models lists no model (HTTP {status}); name one with --model"
                )
            self.model = cards[0].id
        self.max_model_len = next((c.max_model_len for c in cards if c.id == self.model), None)

    async def _probe_tokenizer(self) -> None:
        for name in ("prompt", "content"):
            found = await self._tokenize({"model": self.model, name: SAMPLE, "add_special_tokens": False})
            if found is not None and found.tokens:
                self._tokenize_field = name
                self.token_pool = tuple(sorted(set(found.tokens)))
                return
        if self.options.api == "completions" and self.options.prompt_form != "text":
            self.token_pool = await self._returned_ids()
            if self.token_pool:
                return
        self.notes.append("no /tokenize: prompts are sized by words, so their length in tokens is approximate")

    async def _returned_ids(self) -> tuple[int, ...]:
        """Return token ids of plain English as a completion reports them; none where the server reports none."""
        self.returns_ids = True
        for text in (SAMPLE, SAMPLE[:200]):  # the shorter one for a short context
            reply = await self.send(self.body(text, Turn((), 1)), _PROBE_SECONDS, keep_text=True)
            if reply.outcome is Outcome.OK:
                break
        self.returns_ids = False
        # The first one may be a mark of the beginning, which has no place inside a prompt.
        return tuple(sorted(set(reply.prompt_ids[1:]) - set(reply.prompt_ids[:1])))

    async def _tokenize(self, body: dict[str, Any]) -> _Tokens | None:
        status, raw = await self._small(b"POST", b"/tokenize", _encode(body))
        if status in (500, 502, 503):
            # A server that is still loading must not be taken for one without a tokenizer.
            raise BenchError(f"{self.options.url}/tokenize: HTTP {status}: {error_text(raw)}; is it ready?")
        if status != 200:
            return None
        try:
            return msgspec.json.decode(raw, type=_Tokens)
        except msgspec.DecodeError:
            return None

    async def _probe_fields(self) -> None:
        """One short request for each thing that a server may refuse, the most telling first."""
        want_ids = self.options.api == "completions" and self.options.prompt_form != "text"
        plain: Any = [{"role": "user", "content": "fish"}] if self.options.api == "chat" else "fish"
        if want_ids and self.token_pool:
            self.returns_ids = self.takes_ids = True
            if await self._accepts(list(self.token_pool[:4])):
                return
            self.returns_ids = False
            if await self._accepts(list(self.token_pool[:4])):
                return
            self.takes_ids = False
        if want_ids and self.options.prompt_form == "ids":
            why = "takes no prompts of token ids" if self.token_pool else "has no /tokenize to draw token ids from"
            raise BenchError(f"{self.options.url} {why}; use --prompt text")
        reply = await self.send(self.body(plain, Turn((), 2)), _PROBE_SECONDS)
        if reply.outcome is Outcome.CLIENT_ERROR and self.ignores_eos:
            self.ignores_eos = False
            reply = await self.send(self.body(plain, Turn((), 2)), _PROBE_SECONDS)
            self.notes.append("the server refuses ignore_eos: answers may be shorter than asked for")
        if reply.outcome is not Outcome.OK:
            raise BenchError(f"{self.options.url} did not answer a short request: {reply.error}")

    async def _accepts(self, prompt: list[int]) -> bool:
        reply = await self.send(self.body(prompt, Turn((), 2)), _PROBE_SECONDS, keep_text=True)
        if reply.outcome not in (Outcome.OK, Outcome.CLIENT_ERROR):
            raise BenchError(f"{self.options.url} did not answer a short request: {reply.error}")
        self.returns_ids = self.returns_ids and bool(reply.token_ids)
        return reply.outcome is Outcome.OK

    async def _small(self, method: bytes, path: bytes, body: bytes = b"") -> tuple[int, bytes]:
        try:
            if method == b"GET":
                return await self._endpoint.get(path, seconds=_PROBE_SECONDS)
            return await self._endpoint.post(path, body, seconds=_PROBE_SECONDS, limit=_BODY_LIMIT)
        except LegFailed as error:
            raise BenchError(f"{error}; is a server running there?") from None
        except TimeoutError:
            raise BenchError(f"{self.options.url}{path.decode()} gave no answer in {_PROBE_SECONDS:g} s") from None


def _take(payload: bytes, reply: Reply, now: float, keep_text: bool) -> None:
    if payload == DONE:
        reply.done = True
        return
    event = _decode(payload)
    if isinstance(event.error, msgspec.Raw) and bytes(event.error) != b"null":
        reply.outcome, reply.error = Outcome.REPLICA_FAULT, f"error in the stream: {error_text(payload)}"
        return
    if event.usage is not None:
        reply.usage = event.usage
    if not event.choices:
        return
    choice = event.choices[0]
    if choice.visible:
        reply.events.append(now)
        reply.last = now
    if choice.finish_reason is not None:
        reply.finish_reason = choice.finish_reason
        reply.last = now
    if keep_text:
        reply.text.append(choice.text or (choice.delta.content if choice.delta else None) or "")
        reply.token_ids += choice.token_ids or ()
        reply.prompt_ids += choice.prompt_token_ids or ()


def _client_outcome(status: int) -> Outcome:
    # To a replica's gateway a refused credential is the replica's doing; to a user it is the user's.
    return Outcome.CLIENT_ERROR if status in (401, 403, 407) else outcome_of_status(status)
