"""Compressed request bodies (RFC 9110, 8.4): gzip and deflate, decompressed within a bound."""

import zlib

from shoal.http.errors import ApiError, shown

ACCEPTED = "gzip, deflate, identity"
OFF_LOOP_BYTES = 1024
"""Larger bodies are decompressed in a thread: a thousandfold is what deflate can make of them."""


def is_encoded(encoding: str) -> bool:
    """Whether a body with this Content-Encoding has to be decompressed."""
    return encoding.strip().lower() not in ("", "identity")


def decompress(body: bytes | bytearray, encoding: str, limit: int) -> bytes:
    """The body as it was before `encoding`. `ApiError` 400 (broken), 413 (more than `limit` bytes) or 415."""
    name = encoding.strip().lower()
    if name not in ("gzip", "x-gzip", "deflate"):
        raise ApiError(
            415,
            f"Content-Encoding {shown(encoding)} is not accepted; send one of {ACCEPTED}",
            param="Content-Encoding",
            code="unsupported_content_encoding",
            headers={"Accept-Encoding": ACCEPTED},
        )
    try:
        return _inflated(body, _window(name, body), limit)
    except zlib.error:
        raise _broken(name) from None


def _window(name: str, body: bytes | bytearray) -> int:
    if name != "deflate":
        return 31
    # It should have zlib's header; many senders leave it out.
    headed = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return 15 if headed else -15


def _inflated(body: bytes | bytearray, window: int, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        stream = zlib.decompressobj(window)
        part = stream.decompress(body, limit - size + 1)
        size += len(part)
        if size > limit:
            raise ApiError(
                413,
                f"the body is larger than is accepted here ({limit} bytes) once it is decompressed",
                code="request_too_large",
                headers={"Connection": "close"},
            )
        parts.append(part)
        if not stream.eof:
            raise _broken("gzip" if window == 31 else "deflate")
        body = stream.unused_data
        # A gzip file may have several members.
        if window != 31 or not body.strip(b"\0"):
            return b"".join(parts)


def _broken(name: str) -> ApiError:
    return ApiError(400, f"the body is not whole or not {name}, as Content-Encoding says", code="invalid_encoding")
