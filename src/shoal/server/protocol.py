"""The bodies of requests: typed, and the source of the served OpenAPI document.

At the top level a field that is not known is an error. Below it (messages, their parts, tools, tool calls) unknown
fields are ignored: clients send back what other servers and gateways added (litellm#25595, vllm#10463).
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.server.fields import MAX_LOGPROBS, GenerationRequest, JsonObject, TokenId


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message. Only text: this engine does not see or hear.

    `thinking` and `reasoning` parts of earlier answers are accepted and not shown to the model.
    """

    type: Literal["text", "refusal", "input_text", "output_text", "thinking", "reasoning"]
    text: str | None = None
    refusal: str | None = None

    @property
    def shown(self) -> str | None:
        """The text that the model sees; None: the part is left out."""
        if self.type in ("thinking", "reasoning"):
            return None
        return (self.refusal if self.type == "refusal" else self.text) or ""


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str | JsonObject | None = None
    """JSON text, as OpenAI has it; the object itself, as some clients have it; null: no arguments."""

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, str):
            return self.arguments or "{}"
        return msgspec.json.encode(self.arguments or {}).decode()


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """`developer` is `system`; `function` is the `tool` of clients from before tools."""
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    """Another name of `reasoning_content`, where it is text."""
    refusal: str | None = None
    function_call: FunctionCall | None = None
    """The one call of an assistant's message, from before tools."""


class FunctionDefinition(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]
    description: str | None = None
    parameters: JsonObject | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


_NOBODY = NamedFunction("")


class _NamesFunction(msgspec.Struct, frozen=True):
    """`{"function": {"name": "f"}}` as chat has it, or `{"name": "f"}` as responses have it."""

    function: NamedFunction = _NOBODY
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and self.function is _NOBODY:
            msgspec.structs.force_setattr(self, "function", NamedFunction(self.name))
        if self.function is _NOBODY:
            raise ValueError("Object missing required field `function.name`")


class NamedToolChoice(_NamesFunction, frozen=True, tag_field="type", tag="function"):
    """The function that must be called."""


class AllowedTool(_NamesFunction, frozen=True):
    """A function that may be called."""


class AllowedTools(msgspec.Struct, frozen=True):
    tools: list[AllowedTool]
    mode: Literal["auto", "required"] = "auto"


class AllowedToolsChoice(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """The functions that may be called, of all that are given. Chat nests the two fields, responses don't."""

    allowed_tools: AllowedTools | None = None
    tools: list[AllowedTool] | None = None
    mode: Literal["auto", "required"] | None = None


class ChatRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """OpenAI's newer name of `max_tokens`; give one of the two."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedToolChoice | AllowedToolsChoice | None = None
    """`any` is another name of `required`."""
    parallel_tool_calls: bool | None = None
    """False: at most one call is returned."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """The last message is the start of the answer, not a turn of its own."""
    chat_template_kwargs: JsonObject | None = None
    include_reasoning: bool | None = None
    """False: the model's reasoning is left out of the answer."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[Literal["text"]] | None = None
    prediction: JsonObject | None = None
    """A guess of the answer that would only make it faster: accepted and ignored."""


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
