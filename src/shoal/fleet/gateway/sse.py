"""Events cleared of what the gateway asked for on the client's behalf."""

import re

import msgspec

from shoal.http.sse import data_of, split_events

# Inside a JSON string a quote is always escaped, so that none of these matches in a text.
_IDS = rb'"(?:prompt_)?token_ids"\s*:\s*(?:\[[0-9,\s]*\]|null)'
_TOKEN_IDS = re.compile(rb",\s*" + _IDS)
_TOKEN_IDS_FIRST = re.compile(_IDS + rb"\s*,?\s*")
_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null')

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


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
