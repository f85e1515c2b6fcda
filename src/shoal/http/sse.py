"""Server-sent events: written, and split as they come."""

import re

import msgspec

from shoal.policy.outcomes import LegFailed, Outcome

DONE = b"data: [DONE]"
"""The last event of OpenAI's streams, without the empty line that ends it."""
DONE_EVENT = DONE + b"\n\n"
HEARTBEAT = b": keep-alive\n\n"
"""A comment, which every SSE client ignores."""

MAX_EVENT_BYTES = 16 * 2**20
"""Of one event: log-probabilities of a long prompt are the largest."""
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
    """Cuts a stream into runs of whole events, however it arrives."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, piece: bytes) -> bytes:
        """Return the events that are whole now, as they came. `LegFailed` for one of more than `limit` bytes."""
        rest = self._rest
        if not rest and piece.endswith(b"\n\n"):
            return piece
        # An end of an event may lie across pieces; what was searched before is not searched again.
        start = max(0, len(rest) - 2)
        rest += piece
        at, at_crlf = rest.rfind(b"\n\n", start), rest.rfind(b"\n\r\n", start)
        end = max(at + 2 if at >= 0 else 0, at_crlf + 3 if at_crlf >= 0 else 0)
        whole = bytes(rest[:end])
        del rest[:end]
        if len(rest) > self._limit:
            raise LegFailed(Outcome.REPLICA_FAULT, f"an event of more than {self._limit} bytes")
        return whole


def split_events(events: bytes) -> list[bytes]:
    """Whole events one by one, each without the empty line that ends it."""
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
