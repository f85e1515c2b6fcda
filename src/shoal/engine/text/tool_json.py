"""JSON as models write it: found in growing text, and taken apart without rewriting what they wrote."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from shoal.engine.text.cursor import Malformed, Reading, TextCursor

_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r"[ \t\r\n:,a-zA-Z0-9+\-.]*")
_SPACES = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model asks for. `arguments` is the text of a JSON object."""

    name: str
    arguments: str
    id: str | None = None
    """The model's own identifier, where its notation has one."""


def read_json(cursor: TextCursor) -> Reading[str]:
    """Read one JSON object or list, which begins at the cursor; `Malformed` as soon as it cannot be one."""
    pieces: list[str] = []
    yield from scan_json(cursor, pieces.append)
    return "".join(pieces)


def scan_json(cursor: TextCursor, sink: Callable[[str], None]) -> Reading[None]:
    """Hand the text of one JSON object or list to `sink` as it comes; `Malformed` as soon as it cannot be one.

    Only brackets, strings and the characters between them are looked at. A mark such as `</tool_call>` inside a
    string is text; outside one it has characters that JSON lacks there, so that a broken value ends at once.
    """
    depth, in_string, escaped = 0, False, False
    while (yield from cursor.peek()):
        chunk, start = cursor.chunk, cursor.at
        at = start
        while at < len(chunk):
            if escaped:
                escaped, at = False, at + 1
                continue
            at = _end(_IN_STRING if in_string else _OUTSIDE, chunk, at)
            if at == len(chunk):
                break
            character, at = chunk[at], at + 1
            if character == '"':
                in_string = not in_string
            elif in_string:
                escaped = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
            else:
                cursor.at = at
                raise Malformed
            if depth == 0:
                cursor.at = at
                sink(chunk[start:at])
                return
        cursor.at = len(chunk)
        sink(chunk[start:])
    raise Malformed


def read_string(cursor: TextCursor) -> Reading[str]:
    """Read the JSON string that begins at the cursor, quotes included; `Malformed` if none does."""
    pieces = ['"']
    if not (yield from cursor.literal('"')):
        raise Malformed
    while True:
        pieces.append((yield from cursor.skip(_IN_STRING)))
        character = yield from cursor.peek()
        pieces.append(cursor.step())
        if character == '"':
            return "".join(pieces)
        if not character:
            raise Malformed
        yield from cursor.peek()
        pieces.append(cursor.step())


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def calls_of(text: str) -> list[ToolCall] | None:
    """The calls that a JSON object, or a list of objects, describes; None if it is anything else."""
    value = loads(text)
    if isinstance(value, dict):
        parts = [text]
    elif isinstance(value, list):
        parts = list(elements(text))
    else:
        return None
    calls = [_call_of(part) for part in parts]
    return [call for call in calls if call is not None] if calls and all(calls) else None


def _call_of(text: str) -> ToolCall | None:
    if not text.lstrip().startswith("{"):
        return None
    fields = dict(members(text))
    if fields.get("function", "").startswith("{"):  # OpenAI's own nesting, which some fine-tunes repeat
        fields = {**fields, **dict(members(fields["function"]))}
    name = loads(fields.get("name", "null"))
    arguments = fields.get("arguments", fields.get("parameters", "{}"))
    if arguments.startswith('"'):
        arguments = loads(arguments)
    raw = object_text(arguments)
    if not isinstance(name, str) or not is_name(name) or raw is None:
        return None
    identity = loads(fields.get("id", "null"))
    return ToolCall(name, raw, identity if isinstance(identity, str) and is_name(identity) else None)


def is_name(text: str) -> bool:
    """Whether a name can be sent: it isn't empty, and no half of a surrogate pair is in it."""
    return bool(text) and not any("\ud800" <= character <= "\udfff" for character in text)


def object_text(text: str) -> str | None:
    """A JSON object as `json_text` gives it; None if `text` is none."""
    return json_text(text) if isinstance(loads(text), dict) else None


def json_text(text: str) -> str | None:
    """A JSON value as the model wrote it, numbers and spaces included; None for `null` and what isn't JSON.

    Control characters inside strings, which models write and JSON forbids, are escaped.
    """
    if loads(text) is None:
        return None
    text = text.strip(" \t\r\n")
    return _STRING.sub(_escape_controls, text) if _CONTROL.search(text) else text


def _escape_controls(match: re.Match[str]) -> str:
    return _CONTROL.sub(lambda control: json.dumps(control[0])[1:-1], match[0])


def members(text: str) -> Iterator[tuple[str, str]]:
    """Keys of a valid JSON object, each with its value's own text."""
    yield from _parts(text, has_keys=True)


def elements(text: str) -> Iterator[str]:
    """The elements' own texts of a valid JSON list."""
    for _, value in _parts(text, has_keys=False):
        yield value


def _parts(text: str, *, has_keys: bool) -> Iterator[tuple[str, str]]:
    at = _end(_SPACES, text, 0) + 1
    while text[at := _end(_SPACES, text, at)] not in "}]":
        key = ""
        if has_keys:
            key, at = _DECODER.raw_decode(text, at)
            at = _end(_SPACES, text, _end(_SPACES, text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield key, text[at:end]
        at = _end(_SPACES, text, end)
        at += text[at] == ","


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is beyond a float")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite)


def loads(text: str) -> Any:
    """The JSON value, or None. Line breaks inside strings are let through: models write them."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def dumps(value: Any) -> str:
    """Compact JSON text, non-ASCII characters as themselves where they can be sent."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or is_name(text) else json.dumps(value, allow_nan=False)
