"""Server-sent events as bytes: split at their boundaries, and cleared of what the gateway asked for."""

import re

import msgspec

DONE = b"data: [DONE]"
HEARTBEAT = b": keep-alive\n\n"
"""A comment, which every SSE client ignores."""

_BOUNDARY = re.compile(rb"(?:\r?\n){2}")
# Inside a JSON string a quote is always escaped, so that none of these matches in a text.
_IDS = rb'"(?:prompt_)?token_ids"\s*:\s*(?:\[[0-9,\s]*\]|null)'
_TOKEN_IDS = re.compile(rb",\s*" + _IDS)
_TOKEN_IDS_FIRST = re.compile(_IDS + rb"\s*,?\s*")
_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null')

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class SseSplitter:
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


def split_events(events: bytes) -> list[bytes]:
    """Whole events one by one, each without the empty line that ends it."""
    if events.count(b"\n\n") == 1 and events.endswith(b"\n\n"):
        return [events[:-2]]
    # The expression looks at every byte, which costs more than parsing the events.
    parts = _BOUNDARY.split(events) if b"\r" in events else events.split(b"\n\n")
    return [event for event in parts if event]


def data_of(event: bytes) -> bytes:
    """The data of one event: its `data` lines, joined; empty for a comment."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def payloads(events: bytes) -> list[bytes]:
    """The data of each event in a run of whole events; comments have none."""
    return [data for event in split_events(events) if (data := data_of(event))]


def without_token_ids(events: bytes) -> bytes:
    """The events less the token ids that were asked for on the client's behalf."""
    if b'token_ids"' not in events:
        return events
    events = _TOKEN_IDS.sub(b"", events)
    return _TOKEN_IDS_FIRST.sub(b"", events) if b'token_ids"' in events else events


def without_usage(events: bytes) -> bytes:
    """The events less the usage that was asked for on the client's behalf.

    An event that has nothing but usage goes; clients read the first choice of every event that there is.
    """
    # Most engines write it so, in every event: a search for the rest then ends at once.
    events = events.replace(b',"usage":null', b"")
    if b'"usage"' not in events:
        return events
    events = _NULL_USAGE.sub(b"", events)
    if b'"usage"' not in events:
        return events
    return b"".join(kept + b"\n\n" for event in split_events(events) if (kept := _without_usage(event)))


def _without_usage(event: bytes) -> bytes:
    if b'"usage"' not in event:
        return event
    try:
        fields = _fields.decode(data_of(event))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return event
    usage = fields.pop("usage", None)
    if usage is None:
        return event
    if not bytes(fields.get("choices", b"")).strip(b"[] \t\r\n") and bytes(usage) != b"null":
        return b""
    lines = [line for line in event.splitlines() if not line.startswith(b"data:")]
    return b"\n".join([*lines, b"data: " + _encode(fields)])
