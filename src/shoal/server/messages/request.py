"""Bodies of `POST /v1/messages`: strict at the top level, tolerant of unknown fields below it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.server.fields import INT64, MAX_STOPS, JsonObject

ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class TextBlock(msgspec.Struct, frozen=True):
    type: Literal["text"]
    text: str


class ResultBlock(msgspec.Struct, frozen=True):
    """A part of what a tool returned. What is no text is replaced by a note."""

    type: str
    text: str | None = None


class ContentBlock(msgspec.Struct, frozen=True):
    """A block of a message. Which fields it needs depends on its type (`conversion`)."""

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    """A JSON object, kept as it was written: `1.10` stays `1.10`."""
    tool_use_id: str | None = None
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class MessagesTool(msgspec.Struct, frozen=True):
    """A tool that the client runs."""

    name: ToolName
    description: str | None = None
    input_schema: JsonObject | None = None
    type: str | None = None
    """Null or `custom`; others are tools that Anthropic defines or runs."""
    strict: bool | None = None


class MessagesToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    """Accepted; only `max_tokens` bounds the thinking."""


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/messages/count_tokens`, and what a conversation is made of at `/v1/messages`."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: JsonObject | None = None
    # Refused where they ask for something that isn't here.
    mcp_servers: list[Any] | None = None
    container: Any = None
    # Anthropic's and Claude Code's own that change nothing here.
    cache_control: Any = None
    context_management: Any = None
    speed: str | None = None
    diagnostics: Any = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class MessagesRequest(CountTokensRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    """Includes thinking. A number above what the context has left is lowered to it."""
    stop_sequences: Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    # Beyond Anthropic's, as at /v1/chat/completions.
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-INT64, le=INT64 - 1)] | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    # Anthropic's own that change nothing here.
    metadata: Any = None
    service_tier: str | None = None
    inference_geo: str | None = None
