"""How the text of an answer becomes content and tool calls, by `tool_choice`.

none        the text is the content
auto        the model decides; its family's own format is parsed (engine.text.tools)
required    a guided JSON list of calls; the text is that list
one named   the text is the guided JSON of the function's arguments
"""

import uuid
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET

from shoal.engine.server.answers import Delta, FunctionCallOut, FunctionDelta, ToolCallDelta, ToolCallOut
from shoal.engine.server.protocol import ChatRequest, NamedToolChoice
from shoal.engine.server.state import Engine
from shoal.engine.server.tool_choice import active_tools
from shoal.engine.text.tools import Event, Reasoning, ToolFormat, ToolParser, tool_parser


class Reader(Protocol):
    """Turns one choice's text, as it comes, into content and calls."""

    def feed(self, text: str) -> list[Delta]:
        """What is new for the client after more of the text."""

    def close(self) -> list[Delta]:
        """What was held back, once the text is complete."""

    @property
    def called(self) -> bool:
        """A tool call has been read."""


class PlainReader:
    """All text is content."""

    called = False

    def feed(self, text: str) -> list[Delta]:
        return [Delta(content=text)] if text else []

    def close(self) -> list[Delta]:
        return []


class NamedReader:
    """The text is the arguments of one function that the client chose."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.called = False

    def feed(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self.called:
            return [Delta(tool_calls=[ToolCallDelta(0, FunctionDelta(arguments=text))])]
        self.called = True
        return [_opening(0, self._name, text)]

    def close(self) -> list[Delta]:
        return []


class RequiredReader:
    """The text is a JSON list of calls; it can be taken apart only when it is complete."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self.called = False

    def feed(self, text: str) -> list[Delta]:
        self._text.append(text)
        return []

    def close(self) -> list[Delta]:
        text = "".join(self._text)
        try:
            calls = msgspec.json.decode(text, type=list[_Call])
        except msgspec.MsgspecError:
            # Cut off by max_tokens: what there is goes to the client as it is.
            return [Delta(content=text)] if text else []
        self.called = bool(calls)
        return [_opening(i, call.name, bytes(call.arguments).decode()) for i, call in enumerate(calls)]


class FamilyReader:
    """The model's own notation, parsed as it streams: content at once, calls when they are whole."""

    def __init__(self, parser: ToolParser, *, at_most_one: bool) -> None:
        self._parser = parser
        self._most = 1 if at_most_one else None
        self._calls = 0

    @property
    def called(self) -> bool:
        return self._calls > 0

    def feed(self, text: str) -> list[Delta]:
        return self._deltas(self._parser.push(text))

    def close(self) -> list[Delta]:
        return self._deltas(self._parser.flush())

    def _deltas(self, events: list[Event]) -> list[Delta]:
        deltas = []
        for event in events:
            if isinstance(event, str):
                deltas.append(Delta(content=event))
            elif isinstance(event, Reasoning):
                continue
            elif self._most is None or self._calls < self._most:
                deltas.append(_opening(self._calls, event.name, event.arguments, event.id))
                self._calls += 1
        return deltas


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw


def _opening(index: int, name: str, arguments: str, identity: str | None = None) -> Delta:
    call = ToolCallDelta(
        index,
        FunctionDelta(name=name, arguments=arguments),
        id=identity or f"call_{uuid.uuid4().hex[:24]}",
        type="function",
    )
    return Delta(tool_calls=[call])


def reader_for(engine: Engine, body: ChatRequest) -> Reader:
    """A reader of one choice."""
    if isinstance(body.tool_choice, NamedToolChoice):
        return NamedReader(body.tool_choice.function.name)
    if body.tool_choice == "required":
        return RequiredReader()
    if (notation := parsed_notation(engine, body)) is not None:
        schemas = {tool.function.name: tool.function.parameters or {} for tool in active_tools(body)}
        return FamilyReader(tool_parser(notation, schemas), at_most_one=body.parallel_tool_calls is False)
    return PlainReader()


def parsed_notation(engine: Engine, body: ChatRequest) -> ToolFormat | None:
    """The notation whose marks the answer is searched for; None: the text is taken as it is."""
    if body.tool_choice == "required" or isinstance(body.tool_choice, NamedToolChoice):
        return None
    notation = engine.tokenizer.tool_format(engine.spec.model_type)
    # Harmony's channels are in every answer, tools or not.
    return notation if active_tools(body) or notation == "harmony" else None


class Collected:
    """The deltas of one choice put together again, for an answer that is not streamed."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._names: dict[int, tuple[str, str]] = {}

    def add(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta.content, str):
                self._content.append(delta.content)
            if delta.tool_calls is UNSET:
                continue
            for call in delta.tool_calls:
                if isinstance(call.id, str) and isinstance(call.function.name, str):
                    self._names[call.index] = (call.id, call.function.name)
                if isinstance(call.function.arguments, str):
                    self._calls.setdefault(call.index, []).append(call.function.arguments)

    @property
    def content(self) -> str:
        return "".join(self._content)

    def calls(self) -> list[ToolCallOut]:
        found = []
        for index in sorted(self._names):
            identity, name = self._names[index]
            found.append(ToolCallOut(identity, FunctionCallOut(name, "".join(self._calls.get(index, [])))))
        return found
