"""The name that a client asks for and the name that a replica serves, translated both ways."""

import re

import msgspec
from msgspec import Raw

_fields = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode
# Inside a JSON string a quote is always escaped, so the pattern can't match in a text.
_MODEL = re.compile(rb'("model"\s*:\s*)"(?:[^"\\]|\\.)*"')


class Names:
    """Translates one request and its answers. Does nothing where both names are the same."""

    def __init__(self, asked: str, served: str | None) -> None:
        self._served = served if served is not None and served != asked else None
        self._asked = _encode(asked) if self._served is not None else b""
        self._usual = (b"", b"")
        """The field as the events of this stream have it, and as the client gets it."""

    def request(self, body: bytes) -> bytes:
        """The body with the replica's name; its other fields are copied unread."""
        if self._served is None:
            return body
        return _encode(_fields.decode(body) | {"model": Raw(_encode(self._served))})

    def answer(self, body: bytes) -> bytes:
        """A whole answer with the client's name, where it is a JSON object that names a model."""
        if self._served is None:
            return body
        try:
            fields = _fields.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return body
        return _encode(fields | {"model": Raw(self._asked)}) if "model" in fields else body

    def events(self, events: bytes) -> bytes:
        """Whole events of a stream with the client's name."""
        if self._served is None:
            return events
        usual, translated = self._usual
        if usual and events.count(usual) == events.count(b'"model"'):
            # The same field everywhere: no need for the expression, which looks at every byte.
            return events.replace(usual, translated)
        return _MODEL.sub(self._translated, events)

    def _translated(self, found: re.Match[bytes]) -> bytes:
        self._usual = found[0], found[1] + self._asked
        return self._usual[1]
