"""How the streams of each API are read: output as it passes, the engine's count, errors, the end."""

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from shoal.fleet.gateway.usage import AnyUsage, Usage, estimate_tokens
from shoal.http.errors import ErrorBody, error_json, messages_error_json
from shoal.policy.outcomes import LegFailed, Outcome

_CLIENT_TYPES = frozenset({"invalid_request_error", "not_found_error", "BadRequestError", "NotFoundError"})
_LOAD_TYPES = frozenset({"rate_limit_error", "service_unavailable_error", "overloaded_error"})


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str = ""
    type: str | None = None
    code: int | str | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class Delta(msgspec.Struct, gc=False):
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

    @property
    def reasoned(self) -> str | None:
        """Reasoning in it, which is no content."""
        return None if self.delta is None else self.delta.reasoning_content or self.delta.reasoning


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
    opening: bool = False
    """It comes before any output: engines send it when they take a request on, long before they have an answer."""
    response_id: str = ""


class StreamFormat(Protocol):
    """One API's."""

    end: str
    """What a whole stream ends with, for messages."""
    plain: bytes
    """What events begin with that have output and, unless they say otherwise in plain sight, nothing else."""

    def read(self, data: bytes) -> Reading:
        """The payload of one event; `msgspec.MsgspecError` or `UnicodeDecodeError` where it is something else."""

    def output_of(self, lines: bytes, chunks: list[Chunk] | None = None) -> int:
        """Tokens of output in the payloads of plain events, one per line; raises like `read`.

        The events are added to `chunks`, where streams of this API can be continued.
        """

    def error_event(self, body: ErrorBody) -> bytes:
        """The event that ends a stream with an error."""


class _CountedChoice(msgspec.Struct, gc=False):
    """What of a choice is counted: two thirds of the time that all of it takes."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None


class _Counted(msgspec.Struct, gc=False):
    choices: list[_CountedChoice] = []


def _tokens_of(choice: Choice | _CountedChoice) -> int:
    if choice.token_ids:
        return len(choice.token_ids)
    delta = choice.delta
    if delta is None:
        return estimate_tokens(len(choice.text or ""))
    size = len(delta.content) if delta.content else 0
    if reasoned := delta.reasoning_content or delta.reasoning:
        size += len(reasoned)
    if delta.tool_calls:
        for call in delta.tool_calls:
            if call.function is not None:
                size += len(call.function.name or "") + len(call.function.arguments or "")
    return estimate_tokens(size)


class CompletionsFormat:
    """Chat and text completions: chunks with choices, then `[DONE]`."""

    end = "[DONE]"
    plain = b"data: {"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Chunk).decode
        self._decode_lines = msgspec.json.Decoder(Chunk).decode_lines
        self._count_lines = msgspec.json.Decoder(_Counted).decode_lines

    def read(self, data: bytes) -> Reading:
        if data == b"[DONE]":
            return Reading(done=True)
        chunk = self._decode(data)
        output = 0
        for choice in chunk.choices:
            output += _tokens_of(choice)
        error = chunk.error
        return Reading(output, chunk.usage, False, ErrorDetail(error) if isinstance(error, str) else error, chunk)

    def output_of(self, lines: bytes, chunks: list[Chunk] | None = None) -> int:
        if chunks is not None:
            found = self._decode_lines(lines)
            chunks += found
            return sum([_tokens_of(choice) for chunk in found for choice in chunk.choices])
        return sum([_tokens_of(choice) for event in self._count_lines(lines) for choice in event.choices])

    def error_event(self, body: ErrorBody) -> bytes:
        return b"data: " + error_json(body) + b"\n\n"


class _IncompleteResponse(msgspec.Struct):
    id: str = ""
    usage: AnyUsage | None = None
    error: ErrorDetail | None = None


class _ResponseEvent(msgspec.Struct):
    type: str
    delta: Any = None
    response: _IncompleteResponse | None = None
    message: str | None = None
    code: int | str | None = None
    error: ErrorDetail | None = None


class ResponsesFormat:
    """OpenAI's responses: named events, of which `response.completed` or `response.incomplete` is the last."""

    end = "response.completed"
    plain = b"event: response.output_text.delta\ndata: {"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_ResponseEvent).decode

    def read(self, data: bytes) -> Reading:
        if data == b"[DONE]":
            # Some engines say it after their last event.
            return Reading(done=True)
        event = self._decode(data)
        kind, response = event.type, event.response
        if kind.endswith(".delta"):
            return Reading(estimate_tokens(len(event.delta)) if isinstance(event.delta, str) else 1)
        if kind == "error":
            return Reading(error=event.error or ErrorDetail(event.message or "", None, event.code))
        if kind == "response.failed":
            failure = response.error if response is not None else None
            return Reading(error=failure or ErrorDetail("the response failed"))
        opening = kind in ("response.created", "response.queued", "response.in_progress")
        reading = Reading(opening=opening, done=kind in ("response.completed", "response.incomplete"))
        if response is not None:
            reading.response_id = response.id
            reading.usage = response.usage.unified() if response.usage is not None else None
        return reading

    def output_of(self, lines: bytes, chunks: list[Chunk] | None = None) -> int:
        return sum(self.read(line).output for line in lines.splitlines())

    def error_event(self, body: ErrorBody) -> bytes:
        event = {"type": "error", "code": body.code, "message": body.message, "param": body.param}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


class _MessageDelta(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _Message(msgspec.Struct):
    usage: AnyUsage | None = None


class _MessageEvent(msgspec.Struct):
    type: str
    message: _Message | None = None
    delta: _MessageDelta | None = None
    usage: AnyUsage | None = None
    error: ErrorDetail | None = None


class MessagesFormat:
    """Anthropic's messages: `message_start`, blocks with their deltas, `message_delta`, `message_stop`."""

    end = "message_stop"
    plain = b"event: content_block_delta\ndata: {"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_MessageEvent).decode

    def read(self, data: bytes) -> Reading:
        if data == b"[DONE]":
            return Reading(done=True)
        event = self._decode(data)
        if event.type == "error":
            return Reading(error=event.error or ErrorDetail("the message failed"))
        if event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            return Reading(estimate_tokens(len(delta.text or delta.thinking or delta.partial_json or "")))
        usage = event.message.usage if event.message is not None else event.usage
        return Reading(
            usage=usage.unified() if usage is not None else None,
            done=event.type == "message_stop",
            opening=event.type in ("message_start", "content_block_start", "ping"),
        )

    def output_of(self, lines: bytes, chunks: list[Chunk] | None = None) -> int:
        return sum(self.read(line).output for line in lines.splitlines())

    def error_event(self, body: ErrorBody) -> bytes:
        status = 503 if body.type == "service_unavailable_error" else 400 if body.type in _CLIENT_TYPES else 500
        return b"event: error\ndata: " + messages_error_json(status, body.message, None) + b"\n\n"


class _Failed(msgspec.Struct, frozen=True):
    error: ErrorDetail | str | None = None


def error_of(data: bytes) -> ErrorDetail | None:
    """The error in a JSON body; None if it is none."""
    try:
        error = msgspec.json.decode(data, type=_Failed).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return ErrorDetail(message=error) if isinstance(error, str) else error


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
