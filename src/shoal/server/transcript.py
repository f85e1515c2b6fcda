"""Messages of the chat shape, put together from the finer items of other APIs.

Other APIs send what an assistant said in pieces (reasoning, text, one item per call), and several messages of the
user in a row; chat templates take one message per turn, and some refuse a second of the same role. Leading system
messages are one message for the same reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.server.protocol import ChatMessage, ContentPart, FunctionCall, ToolCall

OMITTED_IMAGE = "[image: not shown, this model reads text only]"
"""Stands for an image in a tool's result: the client can't know beforehand what a tool returns, and an error would
end its conversation (llama.cpp#23465)."""


@dataclass(slots=True)
class _Turn:
    """What the assistant has said since the last message of somebody else."""

    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content=_content(self.text),
            tool_calls=self.calls or None,
            reasoning_content="\n".join(self.reasoning) or None,
        )


class Transcript:
    """Add items in order, then take `messages()`."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._system: list[str] = []
        self._user: list[str] = []
        """What the user has said since the last message of somebody else."""
        self._turn: _Turn | None = None
        self._names: dict[str, str] = {}
        """Tool names by call id: some templates want the name with the result."""

    def system(self, texts: Sequence[str]) -> None:
        self._end_turn()
        if self._messages:
            self._messages.append(ChatMessage(role="system", content=_content(texts)))
        else:
            self._system += texts

    def user(self, texts: Sequence[str]) -> None:
        if self._turn is not None:
            self._end_turn()
        self._user += texts

    def reasoning(self, text: str) -> None:
        if self._turn is not None and (self._turn.text or self._turn.calls):
            self._end_turn()
        self._open().reasoning.append(text)

    def say(self, texts: Sequence[str]) -> None:
        self._open().text += texts

    def call(self, call_id: str, name: str, arguments: str) -> None:
        self._names[call_id] = name
        self._open().calls.append(ToolCall(call_id, FunctionCall(name, arguments)))

    def result(self, call_id: str, texts: Sequence[str]) -> None:
        self._end_turn()
        content = _content(texts) or ""
        name = self._names.get(call_id)
        self._messages.append(ChatMessage(role="tool", content=content, tool_call_id=call_id, name=name))

    def messages(self) -> list[ChatMessage]:
        self._end_turn()
        leading = [ChatMessage(role="system", content="\n\n".join(self._system))] if self._system else []
        return [*leading, *self._messages]

    def _open(self) -> _Turn:
        if self._turn is None:
            self._end_turn()
            self._turn = _Turn()
        return self._turn

    def _end_turn(self) -> None:
        """Close the message of the user or the assistant that is being put together."""
        turn, self._turn = self._turn, None
        texts, self._user = self._user, []
        if turn is not None:
            self._messages.append(turn.message())
        if texts:
            self._messages.append(ChatMessage(role="user", content=_content(texts)))


def _content(texts: Sequence[str]) -> str | list[ContentPart] | None:
    if len(texts) > 1:
        return [ContentPart("text", text) for text in texts]
    return texts[0] if texts else None
