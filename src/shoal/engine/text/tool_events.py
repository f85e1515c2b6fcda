"""What reading an answer gives, and the driver that turns a reading generator into a parser."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.engine.text.cursor import Reading, TextCursor
from shoal.engine.text.tool_json import ToolCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's own reasoning."""

    text: str


Event = str | Reasoning | ToolCall
"""Content, reasoning, or a whole call."""


class EventSink:
    """Collects events. White space next to a section of calls is layout, not content."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._spaces: list[str] = []
        """White space that is dropped if a call comes next."""
        self._after_calls = False
        """Nothing but white space has come since the last call."""

    def content(self, text: str) -> None:
        if self._after_calls:
            text = text.lstrip()
        kept = text.rstrip()
        if kept:
            self._after_calls = False
            self._events.append("".join([*self._spaces, kept]))
            self._spaces.clear()
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def reasoning(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))

    def calls(self, calls: list[ToolCall]) -> None:
        self._spaces.clear()
        self._events.extend(calls)
        self._after_calls = True

    def end(self) -> None:
        """White space at the end of the text belongs to the content."""
        if self._spaces:
            self._events.append("".join(self._spaces))
            self._spaces.clear()

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class GrowingText(Generic[T]):
    """Feeds a reading generator, and hands out what it gave."""

    def __init__(self, reading: Reading[None], take: Callable[[], list[T]]) -> None:
        self._reading = reading
        self._take = take
        next(reading)

    def push(self, text: str) -> list[T]:
        """What is certain after more of the text."""
        if text:
            self._reading.send(text)
        return self._take()

    def flush(self) -> list[T]:
        """The rest, once the text is complete. Nothing may be pushed after it."""
        try:
            self._reading.send(None)
        except StopIteration:
            return self._take()
        raise AssertionError("a reading generator waits for more than the end of the text")


class EventParser(GrowingText[Event]):
    """Reads one answer with a generator."""

    def __init__(self, read: Callable[[TextCursor, EventSink], Reading[None]]) -> None:
        sink = EventSink()

        def whole() -> Reading[None]:
            yield from read(TextCursor(), sink)
            sink.end()

        super().__init__(whole(), sink.take)
