"""The bodies of requests: typed, closed to unknown fields, and the source of the served OpenAPI document."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.engine.server.fields import MAX_LOGPROBS, GenerationRequest, JsonObject, TokenId


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message. Only text: this engine has no eyes or ears."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: str
    """JSON text, as OpenAI has it."""


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the conversation. The unused fields are those a client's own `message.model_dump()` holds."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[JsonObject] | None = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.\-]+$")]
    description: str | None = None
    parameters: JsonObject | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class ChatRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """OpenAI's newer name of `max_tokens`; give one of the two."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """False: at most one call is returned."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """The last message is the start of the answer, not a turn of its own."""
    chat_template_kwargs: JsonObject | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[Literal["text"]] | None = None


class CompletionRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=2**20)]
    """Text, token ids, or a list of either; a list holds one kind only (see `completions.prompts_of`)."""
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    """Accepted only where it equals `n`: candidates are not ranked."""
    suffix: str | None = None
    """Not supported: a value other than null or "" is an error."""
    add_special_tokens: bool | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /tokenize`: of a prompt, or of a conversation as the chat endpoint would render it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[TokenId]
    model: str | None = None
    skip_special_tokens: bool | None = None
