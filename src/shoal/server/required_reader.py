"""Required tool calls as they come: the text is a guided JSON list of `{"name", "arguments"}` objects."""

from shoal.engine.text.cursor import Malformed, Reading, TextCursor
from shoal.engine.text.tool_json import loads, read_string, scan_json
from shoal.server.answers import Delta, FunctionDelta, ToolCallDelta
from shoal.server.call_deltas import opening


class RequiredReader:
    """Names calls as soon as their name is whole, then hands out their arguments as the model writes them.

    The schema puts the name first. A list cut off by the token limit ends in the middle of the last arguments. What
    is cut off before the first name is dropped: the notation is Shoal's own, and no client reads it [vllm#47903].
    Text that is no such list is content.
    """

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._text: list[str] = []
        self._calls = 0
        self._reading: Reading[None] = self._read(TextCursor())
        next(self._reading)
        self._done = False
        self._malformed = False

    @property
    def called(self) -> bool:
        return self._calls > 0

    def feed(self, text: str) -> list[Delta]:
        if not self._calls:
            self._text.append(text)
        self._send(text)
        return self._take()

    def close(self) -> list[Delta]:
        self._send(None)
        deltas = self._take()
        if self._malformed and not self._calls and (text := "".join(self._text)):
            deltas.append(Delta(content=text))
        return deltas

    def _send(self, text: str | None) -> None:
        if self._done or text == "":
            return
        try:
            self._reading.send(text)
        except StopIteration:
            self._done = True
        except Malformed:
            self._done = True
            self._malformed = text is not None

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _read(self, cursor: TextCursor) -> Reading[None]:
        yield from _expect(cursor, "[")
        yield from cursor.skip()
        while (yield from cursor.peek()) == "{":
            yield from self._read_call(cursor)
            yield from cursor.skip()
            if not (yield from cursor.literal(",")):
                return
            yield from cursor.skip()

    def _read_call(self, cursor: TextCursor) -> Reading[None]:
        yield from _expect(cursor, "{")
        cursor.mark()
        if (yield from _key(cursor)) != "name":
            raise Malformed
        name = loads((yield from read_string(cursor)))
        yield from _expect(cursor, ",")
        if not isinstance(name, str) or (yield from _key(cursor)) != "arguments":
            raise Malformed
        if (yield from cursor.peek()) != "{":
            raise Malformed
        index, self._calls = self._calls, self._calls + 1
        self._deltas.append(opening(index, name, ""))
        cursor.mark()

        def show(piece: str) -> None:
            cursor.mark()
            self._deltas.append(Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(arguments=piece))]))

        yield from scan_json(cursor, show)
        yield from _expect(cursor, "}")


def _expect(cursor: TextCursor, character: str) -> Reading[None]:
    yield from cursor.skip()
    if not (yield from cursor.literal(character)):
        raise Malformed


def _key(cursor: TextCursor) -> Reading[str]:
    """Read a key and its colon."""
    yield from cursor.skip()
    key = loads((yield from read_string(cursor)))
    yield from _expect(cursor, ":")
    yield from cursor.skip()
    return str(key)
