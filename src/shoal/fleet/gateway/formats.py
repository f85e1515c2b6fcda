"""How the streams of each API are read: output as it passes, the engine's count, errors, the end."""

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from shoal.engine.server.errors import ErrorBody, error_json
from shoal.fleet.gateway.sse import data_of, split_events
from shoal.fleet.gateway.usage import Usage, estimate_tokens
from shoal.policy.outcomes import LegFailed, Outcome


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str = ""
    type: str | None = None
    code: int | str | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def shown(self) -> str | None:
        """The text that a client shows for it."""
        return self.text if self.delta is None else self.delta.content


class Chunk(msgspec.Struct):
    """One event of a chat or text completion."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: list[Choice] = []
    prompt_token_ids: list[int] | None = None
    usage: Usage | None = None
    error: ErrorDetail | str | None = None


@dataclass(slots=True)
class Reading:
    """What one event says."""

    output: int = 0
    """Tokens of output in it."""
    usage: Usage | None = None
    done: bool = False
    """It is the last of its stream."""
    error: ErrorDetail | None = None
    chunk: Chunk | None = None
    """The event itself, where streams of this API can be continued."""


class StreamFormat(Protocol):
    """One API's."""

    end: str
    """What a whole stream ends with, for messages."""

    def read(self, data: bytes) -> Reading:
        """The payload of one event; `msgspec.MsgspecError` or `UnicodeDecodeError` where it is something else."""

    def error_event(self, body: ErrorBody) -> bytes:
        """The event that ends a stream with an error."""


def _tokens_of(choice: Choice) -> int:
    if choice.token_ids:
        return len(choice.token_ids)
    delta = choice.delta
    if delta is None:
        return estimate_tokens(len(choice.text or ""))
    size = len(delta.content or "") + len(delta.reasoning_content or delta.reasoning or "")
    for call in delta.tool_calls or ():
        if call.function is not None:
            size += len(call.function.name or "") + len(call.function.arguments or "")
    return estimate_tokens(size)


class CompletionsFormat:
    """Chat and text completions: chunks with choices, then `[DONE]`."""

    end = "[DONE]"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Chunk).decode

    def read(self, data: bytes) -> Reading:
        if data == b"[DONE]":
            return Reading(done=True)
        chunk = self._decode(data)
        output = 0
        for choice in chunk.choices:
            output += _tokens_of(choice)
        error = chunk.error
        return Reading(output, chunk.usage, False, ErrorDetail(error) if isinstance(error, str) else error, chunk)

    def error_event(self, body: ErrorBody) -> bytes:
        return b"data: " + error_json(body) + b"\n\n"


@dataclass(slots=True)
class StreamReader:
    """Reads one leg's stream as it passes."""

    format: StreamFormat
    output: int = 0
    """Tokens seen."""
    usage: Usage | None = None
    done: bool = False
    unreadable: bool = False
    """An event was something else than the API's: what was said since can't be known."""
    failure: ErrorDetail | None = None
    """The error event that the stream ended with."""
    chunks: list[Chunk] = field(default_factory=list)
    """Of the events read last."""

    def read(self, events: bytes) -> bytes:
        """The events that are to be relayed: without comments, and without an error event and what follows it."""
        self.chunks = []
        found = split_events(events)
        kept = 0
        for event in found:
            if not (data := data_of(event)):
                break
            if not self._take(data):
                break
            kept += 1
        if kept == len(found):
            return events
        return self._filtered(found, kept)

    def _filtered(self, found: list[bytes], kept: int) -> bytes:
        """Go on after the first event that isn't relayed."""
        out = found[:kept]
        for event in found[kept:]:
            if self.failure is not None:
                break
            data = data_of(event)
            if data and self._take(data):
                out.append(event)
        return b"".join(event + b"\n\n" for event in out)

    def _take(self, data: bytes) -> bool:
        """Whether the event is to be relayed."""
        try:
            reading = self.format.read(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.unreadable = True
            self.output += estimate_tokens(len(data))
            return True
        if reading.error is not None:
            self.failure = reading.error
            return False
        self.output += reading.output
        if reading.usage is not None:
            self.usage = reading.usage
        if reading.done:
            self.done = True
        if reading.chunk is not None:
            self.chunks.append(reading.chunk)
        return True


class _Failed(msgspec.Struct, frozen=True):
    error: ErrorDetail | str | None = None


def error_of(data: bytes) -> ErrorDetail | None:
    """The error in a JSON body; None if it is none."""
    try:
        error = msgspec.json.decode(data, type=_Failed).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return ErrorDetail(message=error) if isinstance(error, str) else error


_CLIENT_TYPES = frozenset({"invalid_request_error", "BadRequestError", "NotFoundError", "not_found_error"})
_LOAD_TYPES = frozenset({"rate_limit_error", "service_unavailable_error", "overloaded_error"})


def failure_of(detail: ErrorDetail) -> LegFailed:
    """What an error event means for its leg."""
    status = detail.code if isinstance(detail.code, int) else None
    if status in (429, 503) or (status is None and detail.type in _LOAD_TYPES):
        outcome = Outcome.BACKPRESSURE
    elif (status is not None and 400 <= status < 500) or (status is None and detail.type in _CLIENT_TYPES):
        outcome = Outcome.CLIENT_ERROR
    else:
        outcome = Outcome.REPLICA_FAULT
    return LegFailed(outcome, f"the replica reports: {detail.message[:300]}")
