"""Server-sent events as bytes: cut at their boundaries, read only where that is needed."""

import re

import msgspec

DONE = b"data: [DONE]"
_TOKEN_IDS = re.compile(rb',"(?:prompt_)?token_ids":(?:\[[0-9,]*\]|null)')
_BOUNDARY = re.compile(rb"(?:\r?\n){2}")
_NULL_USAGE = b',"usage":null'


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens as an engine counted them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens whose KV was reused; None: the engine doesn't say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details is not None else None

    @property
    def output(self) -> int:
        return self.completion_tokens or 0


class _Counted(msgspec.Struct, frozen=True):
    usage: Usage | None = None


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | str | None = None


class _Failed(msgspec.Struct, frozen=True):
    error: ErrorDetail | str | None = None


_counted = msgspec.json.Decoder(_Counted)
_failed = msgspec.json.Decoder(_Failed)


def usage_of(data: bytes) -> Usage | None:
    """The usage in a JSON body or event payload; None if there is none."""
    try:
        return _counted.decode(data).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def error_of(data: bytes) -> ErrorDetail | None:
    """The error in an event payload; None if it is none."""
    try:
        error = _failed.decode(data).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return ErrorDetail(message=error) if isinstance(error, str) else error


def payloads(events: bytes) -> list[bytes]:
    """The data of each event in a run of whole events."""
    return [line[5:].strip() for line in events.splitlines() if line.startswith(b"data:")]


class Cutter:
    """Turns pieces of a stream into whole events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """The events that are whole now, as they came."""
        data = self._rest + piece if self._rest else piece
        end = data.rfind(b"\n\n")
        size = 2
        if (crlf := data.rfind(b"\r\n\r\n")) > end:
            end, size = crlf, 4
        if end < 0:
            self._rest = data
            return b""
        self._rest = data[end + size :]
        return data[: end + size]

    @property
    def rest(self) -> bytes:
        """What is left of an event that never ended."""
        return self._rest


def without_token_ids(events: bytes) -> bytes:
    """The events less the token ids that were asked for on the client's behalf.

    Inside a JSON string a quote is always escaped, so the pattern can't match in a text.
    """
    return _TOKEN_IDS.sub(b"", events)


def without_usage(events: bytes) -> bytes:
    """The events less the usage that was asked for on the client's behalf: the last event, and nulls elsewhere."""
    events = events.replace(_NULL_USAGE, b"")
    if b'"choices":[]' not in events:
        return events
    kept = [event for event in _BOUNDARY.split(events) if event and b'"choices":[]' not in event]
    return b"".join(event + b"\n\n" for event in kept)
