"""The headers of a request that mean something to a gateway, read in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass, field

_SESSION = (b"x-shoal-session", b"x-session-id")
_FORWARDED = (b"traceparent", b"tracestate")
_FORWARDED_PREFIX = b"anthropic-"


@dataclass(slots=True)
class RequestHead:
    """Of one request; what isn't there is empty."""

    authorization: bytes = b""
    content_type: str = ""
    content_encoding: str = ""
    content_length: str = ""
    session: str | None = None
    forwarded: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Headers that replicas get too."""

    @classmethod
    def read(cls, headers: Iterable[tuple[bytes, bytes]], request_id: str) -> "RequestHead":
        """`headers` have lower-case names."""
        head = cls(forwarded=[(b"x-request-id", request_id.encode())])
        for name, value in headers:
            if name == b"authorization":
                head.authorization = value
            elif name == b"x-api-key":
                # Where Anthropic's clients put it.
                head.authorization = head.authorization or b"Bearer " + value
            elif name == b"content-type":
                head.content_type = value.decode("latin-1")
            elif name == b"content-encoding":
                head.content_encoding = value.decode("latin-1")
            elif name == b"content-length":
                head.content_length = value.decode("latin-1")
            elif name in _SESSION:
                head.session = value.decode("latin-1") or None
            elif name in _FORWARDED or name.startswith(_FORWARDED_PREFIX):
                head.forwarded.append((name, value))
        return head
