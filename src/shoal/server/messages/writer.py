"""Writes a message while it is generated: every event of the stream, and the final object out of the same ones."""

import hashlib
import uuid

import msgspec

from shoal.server.blocks import Block, BlockReader, Closed, Grown, Opened
from shoal.server.conversation import Conversation, Piece
from shoal.server.messages.answers import (
    BlockDelta,
    BlockOut,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageEvent,
    MessageObject,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    SignatureDelta,
    Stop,
    StopReason,
    TextDelta,
    TextOut,
    ThinkingDelta,
    ThinkingOut,
    ThinkingTokens,
    ToolUseOut,
)

_NO_INPUT = msgspec.Raw(b"{}")


class MessageWriter:
    """Feed it the pieces of a conversation; `message` is the object so far."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._reader = BlockReader()
        self._begun = False
        self.message = MessageObject(
            id=f"msg_{uuid.uuid4().hex}", model=conversation.body.model, content=[], usage=self._usage()
        )

    def feed(self, piece: Piece) -> list[MessageEvent]:
        """The events of one more piece. The first one begins the message, the last ends it."""
        found: list[MessageEvent] = []
        if not self._begun:
            self._begun = True
            # Cached tokens are known from here on.
            found += [MessageStart(msgspec.structs.replace(self.message, usage=self._usage())), Ping()]
        for event in self._reader.feed(piece):
            match event:
                case Opened(block):
                    found.append(BlockStart(block.index, _empty(block)))
                case Grown(block, text):
                    found.append(BlockDelta(block.index, _delta(block, text)))
                case Closed(block):
                    found += self._closed(block)
        if piece.finish is not None:
            found += self._end(piece)
        return found

    def _closed(self, block: Block) -> list[MessageEvent]:
        whole = _whole(block)
        self.message = msgspec.structs.replace(self.message, content=[*self.message.content, whole])
        stop = BlockStop(block.index)
        if isinstance(whole, ThinkingOut):
            return [BlockDelta(block.index, SignatureDelta(whole.signature)), stop]
        return [stop]

    def _end(self, piece: Piece) -> list[MessageEvent]:
        reason, sequence = self._stop(piece)
        usage = self._usage()
        self.message = msgspec.structs.replace(
            self.message, stop_reason=reason, stop_sequence=sequence, usage=usage
        )
        return [MessageDelta(Stop(reason, sequence), usage), MessageStop()]

    def _stop(self, piece: Piece) -> tuple[StopReason, str | None]:
        if piece.finish == "length":
            return "model_context_window_exceeded" if self._conversation.shortened else "max_tokens", None
        if isinstance(piece.output.stop_reason, str):
            return "stop_sequence", piece.output.stop_reason
        return ("tool_use" if self._reader.called else "end_turn"), None

    def _usage(self) -> MessagesUsage:
        usage = self._conversation.usage.total()
        cached = usage.prompt_tokens_details.cached_tokens
        thinking = ThinkingTokens(self._reader.reasoning_of(usage))
        return MessagesUsage(usage.prompt_tokens - cached, cached, usage.completion_tokens, thinking)


def _empty(block: Block) -> BlockOut:
    match block.kind:
        case "text":
            return TextOut("")
        case "reasoning":
            return ThinkingOut("", "")
        case "call":
            return ToolUseOut(block.call_id, block.name, _NO_INPUT)


def _delta(block: Block, text: str) -> TextDelta | ThinkingDelta | InputDelta:
    match block.kind:
        case "text":
            return TextDelta(text)
        case "reasoning":
            return ThinkingDelta(text)
        case "call":
            return InputDelta(text)


def _whole(block: Block) -> BlockOut:
    text = block.text
    match block.kind:
        case "text":
            return TextOut(text)
        case "reasoning":
            return ThinkingOut(text, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
        case "call":
            return ToolUseOut(block.call_id, block.name, _object(text))


def _object(arguments: str) -> msgspec.Raw:
    """The arguments as they were written; `{}` where they are no object, as when `max_tokens` cut them off."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return _NO_INPUT
    return msgspec.Raw(arguments.encode())
