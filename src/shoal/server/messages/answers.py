"""The message object and the events of its stream, in Anthropic's shape."""

from typing import Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextOut(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingOut(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str
    """A digest of the text. Clients hand it back; it is not checked."""


class ToolUseOut(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


BlockOut = TextOut | ThinkingOut | ToolUseOut


class ThinkingTokens(msgspec.Struct, frozen=True):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    """Prompt tokens that were computed: those of the cache are not among them."""
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    cache_creation_input_tokens: int = 0


class MessageObject(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockOut]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


class TokensCounted(msgspec.Struct, frozen=True):
    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageObject


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: BlockOut


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class Stop(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: MessagesUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The end of the stream."""


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Says nothing."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
