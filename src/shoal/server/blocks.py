"""The answer of one choice as a sequence of blocks: reasoning, text, calls; one is open at a time.

Both `/v1/responses` (output items) and `/v1/messages` (content blocks) send answers this way.
"""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET

from shoal.policy.batching.plan import TokenLogprobs
from shoal.server.answers import Delta, ToolCallDelta, Usage
from shoal.server.conversation import Piece

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(eq=False, slots=True)
class Block:
    """One block; `text` is that of the reasoning or the answer, or the JSON arguments of the call."""

    kind: BlockKind
    index: int
    call_id: str = ""
    name: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def append(self, text: str) -> None:
        self._pieces.append(text)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    block: Block
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens behind `text`, and of those held back before it."""


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


BlockEvent = Opened | Grown | Closed


class BlockReader:
    """Turns pieces of a conversation into block events. White space alone makes no block, unless it is all."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.reasoning_tokens = 0
        """Generated tokens up to the last one of each reasoning block; its closing mark is not among them.
        `reasoning_of` knows better where marks are tokens."""
        self._open: Block | None = None
        self._events: list[BlockEvent] = []
        self._blank = ""
        self._undecided = 0
        self._logprobs: list[TokenLogprobs] = []

    @property
    def called(self) -> bool:
        return any(block.kind == "call" for block in self.blocks)

    def reasoning_of(self, usage: Usage) -> int:
        """Return the tokens of `usage` that were reasoning: counted by the model's marks where they are tokens."""
        exact = usage.completion_tokens_details
        return self.reasoning_tokens if exact is UNSET else exact.reasoning_tokens

    def feed(self, piece: Piece) -> list[BlockEvent]:
        """The events of one more piece; the last piece closes the last block."""
        self._undecided += len(piece.output.token_ids)
        self._logprobs += piece.output.logprobs
        for delta in piece.deltas:
            self._delta(delta)
        if piece.finish is not None:
            blank = self._blank
            if blank and not self.blocks:
                self._grow(self._of_kind("text"), blank)
            if self._open is not None and self._open.kind == "reasoning":
                self._count("reasoning")
            self._close()
        events, self._events = self._events, []
        return events

    def _delta(self, delta: Delta) -> None:
        if isinstance(delta.reasoning_content, str) and delta.reasoning_content:
            self._count("reasoning")
            self._grow(self._of_kind("reasoning"), delta.reasoning_content)
        if isinstance(delta.content, str) and delta.content:
            self._text(delta.content)
        if delta.tool_calls is not UNSET:
            for call in delta.tool_calls:
                self._call(call)

    def _text(self, text: str) -> None:
        if self._open is None or self._open.kind != "text":
            text = self._blank + text
            if text.isspace():
                self._blank = text
                return
        self._count("text")
        logprobs, self._logprobs = tuple(self._logprobs), []
        self._grow(self._of_kind("text"), text, logprobs)

    def _call(self, call: ToolCallDelta) -> None:
        self._count("call")
        if isinstance(call.id, str) and isinstance(call.function.name, str):
            self._start(Block("call", len(self.blocks), call.id, call.function.name))
        arguments = call.function.arguments
        if isinstance(arguments, str) and arguments and self._open is not None:
            self._grow(self._open, arguments)

    def _count(self, kind: BlockKind) -> None:
        if kind == "reasoning":
            self.reasoning_tokens += self._undecided
        if kind != "text":
            self._logprobs.clear()
        self._undecided = 0

    def _of_kind(self, kind: BlockKind) -> Block:
        """The open block if it is of that kind, otherwise a new one."""
        if self._open is not None and self._open.kind == kind:
            return self._open
        return self._start(Block(kind, len(self.blocks)))

    def _start(self, block: Block) -> Block:
        self._close()
        self._open = block
        self.blocks.append(block)
        self._events.append(Opened(block))
        return block

    def _grow(self, block: Block, text: str, logprobs: tuple[TokenLogprobs, ...] = ()) -> None:
        block.append(text)
        block.logprobs += logprobs
        self._events.append(Grown(block, text, logprobs))

    def _close(self) -> None:
        self._blank = ""
        block, self._open = self._open, None
        if block is not None:
            self._events.append(Closed(block))
