"""Reading a request's body: bounded in size and time, checked against its type, errors by field.

A body over the limit is refused before it is held in memory; a client that stops sending is cut off.
"""

import asyncio
import difflib
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from shoal.http.accepted import accepted_values
from shoal.http.encodings import OFF_LOOP_BYTES, decompress, is_encoded
from shoal.http.errors import ApiError, body_timeout, body_too_large, shown, unsupported_media_type
from shoal.http.event_stream import ClientDisconnected, off_loop_if
from shoal.http.json_limits import UNCHECKED_BYTES, check_structure
from shoal.http.json_words import in_json_terms, malformed

T = TypeVar("T", bound=msgspec.Struct)
B = TypeVar("B", bytes, bytearray)

_OFF_LOOP_BYTES = UNCHECKED_BYTES
"""Bodies above this are counted and parsed in a thread: 256 KiB of JSON take about a millisecond."""
_AT = re.compile(r" - at `(?:key in )?\$?(.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"^Object missing required field `(.*?)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


async def read_json(request: Request, kind: type[T], *, limit: int, seconds: float) -> T:
    """The request's JSON body as a `kind`; `ApiError` 400, 408, 413 or 415 that says what is wrong and where."""
    headers = request.headers
    check_head(headers.get("content-type", ""), headers.get("content-length", ""), limit)
    received = await _read(request, limit, seconds)
    body = await decoded(received, headers.get("content-encoding", ""), limit)
    if len(body) > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(parse, body, kind)
    return parse(body, kind)


def check_head(content_type: str, content_length: str, limit: int) -> None:
    """Raise `ApiError` 415 or 413 for a body that isn't JSON, or that says it has more than `limit` bytes."""
    media_type = content_type.split(";", 1)[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise unsupported_media_type(media_type)
    if content_length.isdigit() and int(content_length) > limit:
        raise body_too_large(limit)


async def decoded(body: B, content_encoding: str, limit: int) -> B | bytes:
    """Return a body without its content encoding. `ApiError` 400, 413 or 415."""
    if not is_encoded(content_encoding):
        return body
    return await off_loop_if(len(body) > OFF_LOOP_BYTES, lambda: decompress(body, content_encoding, limit))


async def _read(request: Request, limit: int, seconds: float) -> bytearray:
    # Joining chunks at the end would stop the loop for as long as it takes to copy all of them.
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise body_too_large(limit)
                body += chunk
    except TimeoutError:
        raise body_timeout(seconds) from None
    except ClientDisconnect:
        raise ClientDisconnected from None
    return body


def parse(body: bytes | bytearray, kind: type[T]) -> T:
    """Decode and check; `ApiError` 400 naming the field, its value and what is accepted."""
    check_structure(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _field_error(body, kind, str(error)) from None
    except RecursionError:
        raise ApiError(400, "the JSON is nested too deeply", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = malformed(body, str(error)) if isinstance(error, msgspec.DecodeError) else "not valid UTF-8"
        raise ApiError(400, f"the body is not valid JSON: {where}", code="invalid_json") from None


def _field_error(body: bytes | bytearray, kind: type[msgspec.Struct], message: str) -> ApiError:
    """Turn msgspec's sentence and path (`Expected `int`, got `str` - at `$.stop[2]``) into one that names all."""
    at = _AT.search(message)
    path = at.group(1).lstrip(".") if at else ""
    what = message[: at.start()] if at else message
    if unknown := _UNKNOWN.match(what):
        field = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        names = [f.encode_name for f in msgspec.structs.fields(kind)]
        close = [] if path else difflib.get_close_matches(unknown.group(1), names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return ApiError(400, f"unknown parameter: {field}{hint}", param=field, code="unknown_parameter")
    if missing := _MISSING.match(what):
        field = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return ApiError(400, f"{field} is required", param=field, code="missing_required_parameter")
    found, value = _value_at(body, path)
    given = f" (given {shown(value)})" if found and not what.startswith("Invalid") else ""
    choices = accepted_values(kind, _steps(path)) if what.startswith("Invalid") else []
    expected = f"; expected one of {', '.join(choices)}" if choices else ""
    where = path or "the body"
    message = f"{where}: {in_json_terms(what)}{given}{expected}"
    return ApiError(400, message, param=path or None, code="invalid_value")


def _steps(path: str) -> list[str | int]:
    """`stop[2]` → ["stop", 2]. An index msgspec does not tell (`[...]`) becomes 0: items are of one type."""
    dotted = "." + path if path and not path.startswith("[") else path
    return [name or (0 if index == "..." else int(index)) for name, index in _STEP.findall(dotted)]


def _value_at(body: bytes | bytearray, path: str) -> tuple[bool, Any]:
    if len(body) > _OFF_LOOP_BYTES:
        return False, None  # decoding all of it once more, for a message, is not worth its time
    try:
        value = msgspec.json.decode(body)
        for step in _steps(path):
            value = value[step]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, LookupError, TypeError, ValueError):
        return False, None
    return not isinstance(value, (dict, list)), value
