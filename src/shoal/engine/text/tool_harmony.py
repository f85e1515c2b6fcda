"""gpt-oss's notation: an answer is a series of messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{…}<|call|>                       <|start|>assistant<|channel|>final<|message|>…<|return|>

`final`, and `commentary` without a recipient (a preamble meant for the user), are content; `analysis` is the
model's own reasoning and is left out; a message to `functions.name` is a call.
"""

import re

from shoal.engine.text.tool_bodies import ToolCall, dumps, loads, overlap

_END = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_OPENERS = ("<|start|>", "<|channel|>", "<|message|>")
_BEGIN = re.compile(r"<\|(?:start|channel|message)\|>")
_MESSAGE = "<|message|>"
_LONGEST_MARK = len("<|channel|>")


class HarmonyParser:
    """Reads one answer; see `shoal.engine.text.tools` for what events are."""

    def __init__(self) -> None:
        self._buffer = ""
        self._header = ""
        self._in_body = False
        self._plain = True
        """Nothing marked has come yet: an answer without any mark is content."""

    def push(self, text: str) -> list[str | ToolCall]:
        self._buffer += text
        events: list[str | ToolCall] = []
        while self._body(events) if self._in_body else self._head(events):
            pass
        return events

    def flush(self) -> list[str | ToolCall]:
        events: list[str | ToolCall] = []
        if self._in_body:
            self._close(self._buffer, events)
        elif self._plain and self._buffer:
            events.append(self._buffer)
        self._buffer, self._in_body = "", False
        return events

    def _head(self, events: list[str | ToolCall]) -> bool:
        """Read up to the end of a header; False when more text is needed."""
        if self._plain:
            mark = _BEGIN.search(self._buffer)
            pending = max(overlap(self._buffer, opener) for opener in _OPENERS)
            shown = mark.start() if mark else len(self._buffer) - pending
            if shown:
                events.append(self._buffer[:shown])
                self._buffer = self._buffer[shown:]
            if mark is None:
                return False
            self._plain = False
        header, found, rest = self._buffer.partition(_MESSAGE)
        if not found:
            return False
        self._header, self._buffer, self._in_body = header, rest, True
        return True

    def _body(self, events: list[str | ToolCall]) -> bool:
        end = _END.search(self._buffer)
        if end is None:
            if self._shows:
                mark = self._buffer.rfind("<", max(0, len(self._buffer) - _LONGEST_MARK))
                shown = mark if mark >= 0 else len(self._buffer)
                if shown:
                    events.append(self._buffer[:shown])
                self._buffer = self._buffer[shown:]
            return False
        body, self._buffer = self._buffer[: end.start()], self._buffer[end.start() :]
        self._close(body, events)
        self._in_body = False
        return True

    def _close(self, body: str, events: list[str | ToolCall]) -> None:
        name = self._recipient
        if name is not None:
            arguments = loads(body or "{}")
            if isinstance(arguments, dict):
                events.append(ToolCall(name, dumps(arguments)))
                return
        if body and (self._shows or name is not None):
            events.append(body)

    @property
    def _recipient(self) -> str | None:
        found = re.search(r"to=functions\.([\w.\-]+)", self._header)
        return found[1] if found else None

    @property
    def _shows(self) -> bool:
        if self._recipient is not None:
            return False
        channel = re.search(r"<\|channel\|>\s*(\w+)", self._header)
        return channel is None or channel[1] in ("final", "commentary")
