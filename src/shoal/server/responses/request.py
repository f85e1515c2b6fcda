"""Bodies of `POST /v1/responses`: strict at the top level, tolerant of unknown fields below it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.server.fields import INT64, MAX_LOGPROBS, MAX_STOPS, JsonObject, StreamOptions

ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class InputPart(msgspec.Struct, frozen=True):
    """A part of an item's content."""

    type: Literal[
        "input_text",
        "output_text",
        "text",
        "refusal",
        "summary_text",
        "reasoning_text",
        "input_image",
        "input_file",
        "input_audio",
    ]
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item of the conversation. Which fields an item needs depends on its type (`conversion`)."""

    type: (
        Literal[
            "message",
            "reasoning",
            "item_reference",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
        ]
        | None
    ) = None
    """Null: a message."""
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None


class ResponseTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool. `function`, `custom` and `namespace` are offered to the model (`tools`)."""

    type: str
    name: ToolName | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    format: JsonObject | None = None
    """Of a custom tool: its grammar. The model is told of it, nothing enforces it."""
    tools: list["ResponseTool"] | None = None
    """Of a namespace."""


class ResponseToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list["ResponseToolChoice"] | None = None
    """Of `allowed_tools`."""


class ResponseTextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseTextConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    format: ResponseTextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseReasoning(msgspec.Struct, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """Accepted; reasoning is sent as it is, not summarized."""


class ResponsesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/responses`. Every field but `model` may be null, which means its default."""

    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Includes reasoning. A number above what the context has left is lowered to it."""
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseTextConfig | None = None
    reasoning: ResponseReasoning | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs` and `reasoning.encrypted_content` have an effect, others don't."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    """Not false: the answer can be referred to for a while, on this replica (see `store`)."""
    previous_response_id: str | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    # Beyond OpenAI's, as at /v1/chat/completions.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-INT64, le=INT64 - 1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    # Refused where they ask for something that isn't here.
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    # OpenAI's and Codex's own that change nothing here.
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    context_management: Any = None
    moderation: Any = None
    client_metadata: Any = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
