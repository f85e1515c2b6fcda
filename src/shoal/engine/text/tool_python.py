"""Calls written as Python, as Gemma and Llama's built-in tools do. The text is parsed, never run."""

import ast
import re

from shoal.engine.text.cursor import Malformed, Reading, TextCursor
from shoal.engine.text.tool_json import ToolCall, dumps, is_name

_BUILTIN = re.compile(r"(\w+)\.call(\(.*\))", re.DOTALL)
_CODE = re.compile(r"[^'\"#`]*")
_COMMENT = re.compile(r"[^\n]*")
_STRING_PARTS = {quote: re.compile(rf"[^{quote}\\\n]*") for quote in "'\""}


def read_python(cursor: TextCursor, closer: str) -> Reading[str]:
    """Read Python up to `closer` outside of strings and comments, or to the end of the text.

    `Malformed` if the text ends inside a string, so that the mark may be looked for in what the string swallowed.
    """
    pieces: list[str] = []
    while True:
        pieces.append((yield from cursor.skip(_CODE)))
        character = yield from cursor.peek()
        if not character or (yield from cursor.literal(closer)):
            return "".join(pieces)
        if character == "#":
            pieces.append((yield from cursor.skip(_COMMENT)))
        elif character == "`":
            pieces.append(cursor.step())
        elif (yield from cursor.literal(character * 3)):
            pieces.append(character * 3)
            yield from _take_string(cursor, character, True, pieces)
        else:
            pieces.append(cursor.step())
            yield from _take_string(cursor, character, False, pieces)


def _take_string(cursor: TextCursor, quote: str, tripled: bool, pieces: list[str]) -> Reading[None]:
    """Read up to the quote that ends a string; one without three quotes also ends with its line."""
    while True:
        pieces.append((yield from cursor.skip(_STRING_PARTS[quote])))
        character = yield from cursor.peek()
        if not character:
            raise Malformed
        if tripled and character == quote and (yield from cursor.literal(quote * 3)):
            pieces.append(quote * 3)
            return
        pieces.append(cursor.step())
        if character == "\\":
            yield from cursor.peek()
            pieces.append(cursor.step())
        elif not tripled:
            return


def builtin_call(text: str) -> list[ToolCall] | None:
    """Llama's `name.call(key="value")`."""
    match = _BUILTIN.fullmatch(text.strip())
    return pythonic_calls(match[1] + match[2]) if match else None


def pythonic_calls(code: str) -> list[ToolCall] | None:
    """Python calls with literal keyword arguments, one per line or in a list.

    `print(f(x=1))`, as Gemma likes to write, is a call of `f`.
    """
    try:
        nodes: list[ast.expr] = []
        for statement in ast.parse(code.strip()).body:
            if not isinstance(statement, ast.Expr):
                return None
            value = statement.value
            nodes.extend(value.elts if isinstance(value, ast.List) else [value])
        return [_call_of(node) for node in nodes] or None
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _call_of(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    if name == "print" and len(node.args) == 1 and not node.keywords:
        return _call_of(node.args[0])
    if node.args or not re.fullmatch(r"[\w.]+", name) or not is_name(name):
        raise ValueError("positional arguments have no names to be sent by")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("a mapping of arguments is not a literal")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(name, dumps(arguments))
