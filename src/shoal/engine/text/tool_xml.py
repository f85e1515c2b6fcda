"""Qwen3-Coder's notation: arguments as tagged text, whose types the tool's schema gives.

    <tool_call>
    <function=write_file>
    <parameter=path>
    notes.txt
    </parameter>
    </function>
    </tool_call>

A value is whatever stands between its tags, without the line break after the first and before the last. It ends at
a `</parameter>` that another parameter or the function's end follows: text that merely mentions a tag is text.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.engine.text.cursor import Malformed, Reading, TextCursor, Unfinished, any_of
from shoal.engine.text.tool_json import ToolCall, dumps, is_name, json_text, loads

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""

_MAX_NAME = 256
_PARAMETER, _PARAMETER_END, _FUNCTION_END = "<parameter=", "</parameter>", "</function>"
_PARAMETER_END_PATTERN = any_of((_PARAMETER_END,))
_NAME = re.compile(r"[^\s<>]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MAX_DEPTH = 16
"""References and alternatives inside each other; a recursive schema ends here."""


def read_function(cursor: TextCursor, schemas: Schemas) -> Reading[list[ToolCall]]:
    """Read a function from after `<function=` to after its end. `Unfinished` if the text ends before."""
    start = cursor.offset
    name, _ = yield from _name(cursor)
    if not name:
        raise Malformed
    values: list[tuple[str, str]] = []
    yield from cursor.skip()
    if (yield from cursor.literal(_PARAMETER)):
        key, _ = yield from _name(cursor)
        if not key:
            raise Malformed
        while key:
            value = yield from _value(cursor)
            if value is None:
                # A closing tag is missing; the mark is before the function, or right behind `<function=`.
                calls = _without_ends(cursor.recorded()[start:], schemas)
                if calls is None:
                    raise Unfinished
                return calls
            values.append((key, value[0]))
            key = value[1]
    elif not (yield from cursor.literal(_FUNCTION_END)):
        raise Malformed
    return [_call(name, values, schemas)]


def _name(cursor: TextCursor) -> Reading[tuple[str, str]]:
    """The name up to `>`, empty if it is none; and the text read."""
    read = yield from cursor.header("<> \t\r\n", _MAX_NAME)
    closed = (yield from cursor.peek()) == ">"
    end = cursor.step() if closed else ""
    return (read if closed and _NAME.fullmatch(read) and is_name(read) else ""), read + end


def _value(cursor: TextCursor) -> Reading[tuple[str, str] | None]:
    """A parameter's text and the name of the parameter that follows, empty if none; None if it never ends."""
    pieces: list[str] = []
    while (yield from cursor.until(_PARAMETER_END_PATTERN, (_PARAMETER_END,), pieces.append, record=True)):
        passed = _PARAMETER_END + (yield from cursor.skip())
        if (yield from cursor.literal(_FUNCTION_END)):
            return _without_breaks("".join(pieces)), ""
        if (yield from cursor.literal(_PARAMETER)):
            key, read = yield from _name(cursor)
            if key:
                return _without_breaks("".join(pieces)), key
            passed += _PARAMETER + read
        # Text that mentions the tag.
        pieces.append(passed)
    return None


def _without_breaks(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


def _without_ends(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """Functions whose parameters are not all closed (vllm#23099); None if a function is cut off."""
    calls = []
    for block in text.split("<function="):
        body, end, rest = block.partition(_FUNCTION_END)
        if not end or rest.replace("</tool_call>", "").replace("<tool_call>", "").strip():
            return None
        name, *parts = body.split(_PARAMETER)
        values = []
        for part in parts:
            key, closed, value = part.partition(">")
            if not closed or not _NAME.fullmatch(key) or not is_name(key):
                return None
            value = value.partition(_PARAMETER_END)[0]
            values.append((key, _without_breaks(value)))
        name = name.strip().removesuffix(">")
        if not _NAME.fullmatch(name) or not is_name(name):
            return None
        calls.append(_call(name, values, schemas))
    return calls


def _call(name: str, values: Sequence[tuple[str, str]], schemas: Schemas) -> ToolCall:
    schema = schemas.get(name, {})
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    texts = {key: typed(value, properties.get(key), schema) for key, value in values}
    return ToolCall(name, "{" + ", ".join(f"{dumps(key)}: {text}" for key, text in texts.items()) + "}")


def typed(value: str, schema: object, root: Mapping[str, Any]) -> str:
    """The JSON text of a value written as plain text, of a type that `schema` allows if it can be read as one.

    A value whose type is unknown, or that is of none of the types, is a string. `root` resolves references.
    """
    types = set(_types(schema, root, _MAX_DEPTH))
    text = value.strip()
    if text == "null" and "null" in types:
        return text
    if (
        "string" not in types
        and types & {"integer", "number"}
        and _NUMBER.fullmatch(text)
        and loads(text) is not None
    ):
        return text
    if "string" not in types and "boolean" in types and text.lower() in ("true", "false"):
        return text.lower()
    if text[:1] in ("{", "[") and types & {"object", "array"}:
        kind = "object" if text[0] == "{" else "array"
        if kind in types and (raw := _structured(text)) is not None:
            return raw
    return dumps(value)


def _structured(text: str) -> str | None:
    """An object or list in JSON, kept as written; or in Python, as templates show earlier calls' values."""
    if (raw := json_text(text)) is not None:
        return raw
    try:
        return dumps(ast.literal_eval(text))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _types(schema: object, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The types that a schema allows. What isn't understood allows none, and the value is then a string."""
    if not isinstance(schema, dict) or depth == 0:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        yield from _types(_resolved(reference, root), root, depth - 1)
    declared = schema.get("type")
    yield from (t for t in (declared if isinstance(declared, list) else [declared]) if isinstance(t, str))
    for value in _list(schema.get("enum")) + ([schema["const"]] if "const" in schema else []):
        yield _type_of(value)
    for key in ("anyOf", "oneOf", "allOf"):
        for part in _list(schema.get(key)):
            yield from _types(part, root, depth - 1)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_of(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _resolved(reference: str, root: Mapping[str, Any]) -> object:
    found: object = root
    for key in reference[2:].split("/"):
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
