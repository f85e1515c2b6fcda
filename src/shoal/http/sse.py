"""Server-sent events: written, and split as they come."""

import re

import msgspec

DONE = b"data: [DONE]"
"""The last event of OpenAI's streams, without the empty line that ends it."""
DONE_EVENT = DONE + b"\n\n"
HEARTBEAT = b": keep-alive\n\n"
"""A comment, which every SSE client ignores."""

_BOUNDARY = re.compile(rb"(?:\r?\n){2}")

_encode = msgspec.json.Encoder().encode


def event(value: msgspec.Struct) -> bytes:
    """Return an event whose data is `value` as JSON."""
    return b"data: " + _encode(value) + b"\n\n"


def named_event(value: msgspec.Struct) -> bytes:
    """Return an event whose `event:` line repeats the struct's tag."""
    tag = value.__struct_config__.tag
    assert isinstance(tag, str)
    return b"event: " + tag.encode() + b"\ndata: " + _encode(value) + b"\n\n"


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
