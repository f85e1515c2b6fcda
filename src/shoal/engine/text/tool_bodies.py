"""What stands after the mark that opens a section of tool calls, family by family.

Each body is read from a `TextCursor` whose mark is at its beginning. It hands calls to `emit` as soon as they are
whole, which moves the mark behind them, and returns whether the text since the mark is done with: False means that
it is delimited like a call, but is none, and is content. `Malformed` means that no call can come of it.
"""

import re
from collections.abc import Callable

from shoal.engine.text.cursor import Malformed, Reading, TextCursor
from shoal.engine.text.tool_json import ToolCall, calls_of, object_text, read_json
from shoal.engine.text.tool_python import builtin_call, pythonic_calls, read_python
from shoal.engine.text.tool_xml import Schemas, read_function

Emit = Callable[[list[ToolCall]], None]
Body = Callable[[TextCursor, Emit, str], Reading[bool]]
"""The text is given with the mark that opened the section."""

MAX_HEADER = 256
"""Characters between a mark and the JSON of a call: a name of at most 64, and the notation's own words."""

SEPARATORS = re.compile(r"[;\s]*")
"""What stands between Llama's calls."""
_MISTRAL_HEADER = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]([\w\-]+))?(?:\[ARGS\])?\s*")
_DEEPSEEK_HEADER = re.compile(r"\s*(?:function<｜tool▁sep｜>([\w.\-]+)\s*```json|([\w.\-]+)<｜tool▁sep｜>)\s*")


def hermes_body(closer: str, schemas: Schemas) -> Body:
    """`{"name", "arguments"}` objects, lists of them, or functions in Qwen3-Coder's tags; then `closer`.

    The closing mark may be missing: what is no call any more ends the section.
    """

    def read(cursor: TextCursor, emit: Emit, opener: str) -> Reading[bool]:
        called = False
        if opener == "<function=":
            emit((yield from read_function(cursor, schemas)))
            called = True
        while True:
            yield from cursor.skip()
            character = yield from cursor.peek()
            if character and character in "{[":
                calls = calls_of((yield from read_json(cursor)))
                if calls is None:
                    yield from cursor.skip()
                    yield from cursor.literal(closer)
                    return False
                emit(calls)
            elif character == "<" and (yield from cursor.literal("<function=")):
                emit((yield from read_function(cursor, schemas)))
            elif called:
                yield from cursor.literal(closer)
                return True
            else:
                raise Malformed
            called = True

    return read


def llama_body(cursor: TextCursor, emit: Emit, opener: str) -> Reading[bool]:
    """JSON objects separated by semicolons or white space; or a built-in tool as `name.call(key="value")`."""
    yield from cursor.skip()
    character = yield from cursor.peek()
    if not (character and character in "{["):
        pieces: list[str] = []
        while (yield from cursor.peek()):
            pieces.append(cursor.chunk[cursor.at :])
            cursor.at = len(cursor.chunk)
        calls = builtin_call("".join(pieces))
        if calls:
            emit(calls)
        return bool(calls)
    while character and character in "{[":
        calls = calls_of((yield from read_json(cursor)))
        if calls is None:
            return False
        emit(calls)
        yield from cursor.skip(SEPARATORS)
        character = yield from cursor.peek()
    return True


def mistral_body(cursor: TextCursor, emit: Emit, opener: str) -> Reading[bool]:
    """A list of objects; or, since tokenizer v11, `name[ARGS]{…}`."""
    yield from cursor.skip()
    if (yield from cursor.peek()) == "[":
        calls = calls_of((yield from read_json(cursor)))
    else:
        header = yield from _header(cursor, _MISTRAL_HEADER)
        arguments = object_text((yield from read_json(cursor)))
        calls = None if arguments is None else [ToolCall(header[1], arguments, header[2])]
    if calls:
        emit(calls)
    return bool(calls)


def _header(cursor: TextCursor, pattern: re.Pattern[str]) -> Reading[re.Match[str]]:
    """Read up to the brace that opens the arguments; `Malformed` if that doesn't come soon, or not after this."""
    header = pattern.fullmatch((yield from cursor.header("{", MAX_HEADER)))
    if header is None or (yield from cursor.peek()) != "{":
        raise Malformed
    return header


def deepseek_body(cursor: TextCursor, emit: Emit, opener: str) -> Reading[bool]:
    """`function<sep>name⏎```json⏎{…}⏎```` (V3, R1) or `name<sep>{…}` (V3.1), each between begin and end marks."""
    called = False
    while True:
        yield from cursor.skip()
        if not (yield from cursor.literal("<｜tool▁call▁begin｜>")):
            break
        header = yield from _header(cursor, _DEEPSEEK_HEADER)
        arguments = object_text((yield from read_json(cursor)))
        if arguments is None:
            raise Malformed
        emit([ToolCall(header[1] or header[2], arguments)])
        called = True
        for layout in ("```", "<｜tool▁call▁end｜>"):
            yield from cursor.skip()
            yield from cursor.literal(layout)
    if not called:
        raise Malformed
    yield from cursor.literal("<｜tool▁calls▁end｜>")
    return True


def pythonic_body(cursor: TextCursor, emit: Emit, opener: str) -> Reading[bool]:
    """Python calls up to three back-ticks, or the JSON form."""
    yield from cursor.skip()
    if (yield from cursor.peek()) == "{":
        calls = calls_of((yield from read_json(cursor)))
        yield from cursor.skip()
        yield from cursor.literal("```")
    else:
        calls = pythonic_calls((yield from read_python(cursor, "```")))
    if calls:
        emit(calls)
    return bool(calls)
