"""What stands inside a section of tool calls, family by family. Each function gives None for what is malformed."""

import ast
import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model asks for. `arguments` is the text of a JSON object."""

    name: str
    arguments: str
    id: str | None = None
    """The model's own identifier, where its notation has one."""


def hermes_calls(body: str) -> list[ToolCall] | None:
    """One `{"name", "arguments"}` object, or a list of them."""
    return _calls_of(loads(body))


def llama_calls(body: str) -> list[ToolCall] | None:
    """JSON objects one after another, separated by semicolons; or a built-in tool as `name.call(key="value")`."""
    calls: list[ToolCall] = []
    rest = body.strip()
    while rest.startswith(("{", "[")):
        end = JsonScanner().end(rest)
        found = _calls_of(loads(rest[:end])) if end else None
        if not end or not found:
            return None
        calls.extend(found)
        rest = rest[end:].lstrip("; \t\r\n")
    if rest:
        builtin = re.fullmatch(r"(\w+)\.call(\(.*\))", rest, re.DOTALL)
        return pythonic_calls(builtin[1] + builtin[2]) if builtin and not calls else None
    return calls or None


def mistral_calls(body: str) -> list[ToolCall] | None:
    """A list of objects; or, since tokenizer v11, `name[ARGS]{…}` pieces, each after its own `[TOOL_CALLS]`."""
    if body.lstrip().startswith("["):
        return _calls_of(loads(body))
    calls: list[ToolCall] = []
    for piece in body.split("[TOOL_CALLS]"):
        match = re.fullmatch(r"\s*([\w.\-]+)(?:\[CALL_ID\]([\w\-]+))?(?:\[ARGS\])?\s*(\{.*\})\s*", piece, re.DOTALL)
        arguments = loads(match[3]) if match else None
        if match is None or not isinstance(arguments, dict):
            return None
        calls.append(ToolCall(match[1], dumps(arguments), match[2]))
    return calls or None


def deepseek_calls(body: str) -> list[ToolCall] | None:
    """`function<sep>name⏎```json⏎{…}⏎```` (V3, R1) or `name<sep>{…}` (V3.1), each between begin and end marks."""
    calls: list[ToolCall] = []
    pieces = re.split(r"<｜tool▁call▁begin｜>", body)
    if pieces[0].strip():
        return None
    for piece in pieces[1:]:
        inner = piece.split("<｜tool▁call▁end｜>")[0]
        match = re.fullmatch(
            r"\s*(?:function<｜tool▁sep｜>([\w.\-]+)\s*```json\s*(.*?)\s*```|([\w.\-]+)<｜tool▁sep｜>(.*))\s*",
            inner,
            re.DOTALL,
        )
        arguments = loads(match[2] or match[4] or "") if match else None
        if match is None or not isinstance(arguments, dict):
            return None
        calls.append(ToolCall(match[1] or match[3], dumps(arguments)))
    return calls or None


def pythonic_calls(body: str) -> list[ToolCall] | None:
    """Python calls with literal keyword arguments, one a line or in a list; or the JSON form.

    The text is parsed, never run. `print(f(x=1))`, as Gemma likes to write, is a call of `f`.
    """
    if body.lstrip().startswith("{"):
        return _calls_of(loads(body))
    try:
        statements = ast.parse(body.strip()).body
        nodes: list[ast.expr] = []
        for statement in statements:
            if not isinstance(statement, ast.Expr):
                return None
            value = statement.value
            nodes.extend(value.elts if isinstance(value, ast.List) else [value])
        return [_python_call(node) for node in nodes] or None
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    if name == "print" and len(node.args) == 1 and not node.keywords:
        return _python_call(node.args[0])
    if node.args or not re.fullmatch(r"[\w.]+", name):
        raise ValueError("positional arguments have no names to be sent by")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("a mapping of arguments is no literal")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(name, dumps(arguments))


class JsonScanner:
    """Finds the end of the JSON object or list that a growing text begins with, looking at each character once."""

    def __init__(self) -> None:
        self._at = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Index after the value's last character; None while it is unfinished. `text` only ever grows."""
        for at in range(self._at, len(text)):
            if self._step(text[at]):
                return at + 1
        self._at = len(text)
        return None

    def _step(self, character: str) -> bool:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False


def _calls_of(value: Any) -> list[ToolCall] | None:
    items = value if isinstance(value, list) else [value]
    calls = [_call_of(item) for item in items]
    return [call for call in calls if call is not None] if calls and all(calls) else None


def _call_of(item: Any) -> ToolCall | None:
    if not isinstance(item, dict):
        return None
    if isinstance(item.get("function"), dict):  # OpenAI's own nesting, which some fine-tunes repeat
        item = {**item, **item["function"]}
    name = item.get("name")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = loads(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    identity = item.get("id")
    return ToolCall(name, dumps(arguments), identity if isinstance(identity, str) else None)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is beyond a float")


def loads(text: str) -> Any:
    """The JSON value, or None. Line breaks inside strings are let through: models write them."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def dumps(arguments: dict[str, Any]) -> str:
    """Compact text of a JSON object, non-ASCII characters as themselves."""
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def overlap(text: str, mark: str) -> int:
    """How many last characters of `text` are a proper beginning of `mark`."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
