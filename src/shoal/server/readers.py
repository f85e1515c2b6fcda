"""How the text of an answer becomes reasoning, content and tool calls, delta by delta."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import UNSET

from shoal.engine.text.reasoning import ReasoningSplitter
from shoal.engine.text.tools import Event, Reasoning, ToolParser
from shoal.server.answers import Delta, FunctionCallOut, FunctionDelta, ToolCallDelta, ToolCallOut
from shoal.server.call_deltas import opening

ReasoningShow = Literal["apart", "content", "drop"]
"""Where reasoning goes: into fields of its own, into the content with its marks, or nowhere."""


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
        return [opening(0, self._name, text)]

    def close(self) -> list[Delta]:
        return []


class FamilyReader:
    """The model's own notation, parsed as it streams: content at once, calls when they are whole."""

    def __init__(self, parser: ToolParser, *, at_most_one: bool, show: ReasoningShow) -> None:
        self._parser = parser
        self._show = show
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
        deltas: list[Delta] = []
        for event in events:
            if isinstance(event, str):
                deltas.append(Delta(content=event))
            elif isinstance(event, Reasoning):
                deltas += reasoning_deltas(event, self._show)
            elif self._most is None or self._calls < self._most:
                deltas.append(opening(self._calls, event.name, event.arguments, event.id))
                self._calls += 1
        return deltas


class ReasoningReader:
    """Reasoning at the beginning of the answer, then what another reader makes of the rest."""

    def __init__(self, splitter: ReasoningSplitter, rest: Reader, show: ReasoningShow) -> None:
        self._splitter = splitter
        self._rest = rest
        self._show = show

    @property
    def called(self) -> bool:
        return self._rest.called

    def feed(self, text: str) -> list[Delta]:
        return self._deltas(self._splitter.push(text))

    def close(self) -> list[Delta]:
        return [*self._deltas(self._splitter.flush()), *self._rest.close()]

    def _deltas(self, pieces: list[str | Reasoning]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            if isinstance(piece, Reasoning):
                deltas += reasoning_deltas(piece, self._show)
            else:
                deltas += self._rest.feed(piece)
        return deltas


def reasoning_deltas(reasoning: Reasoning, show: ReasoningShow) -> list[Delta]:
    """What the client gets of reasoning."""
    match show:
        case "apart":
            return [Delta(reasoning_content=reasoning.text, reasoning=reasoning.text)]
        case "content":
            return [Delta(content=reasoning.text)]
        case "drop":
            return []


class Collected:
    """The deltas of one choice put together again, for an answer that is not streamed."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._names: dict[int, tuple[str, str]] = {}

    def add(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta.content, str):
                self._content.append(delta.content)
            if isinstance(delta.reasoning_content, str):
                self._reasoning.append(delta.reasoning_content)
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

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def calls(self) -> list[ToolCallOut]:
        found = []
        for index in sorted(self._names):
            identity, name = self._names[index]
            found.append(ToolCallOut(identity, FunctionCallOut(name, "".join(self._calls.get(index, [])))))
        return found
