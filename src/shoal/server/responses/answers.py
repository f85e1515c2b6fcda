"""The response object and its items, in OpenAI's shape."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from shoal.server.answers import TokenLogprob
from shoal.server.fields import JsonObject
from shoal.server.responses.request import (
    ResponseReasoning,
    ResponseTextConfig,
    ResponseTool,
    ResponseToolChoice,
)

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[JsonObject] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[SummaryText] = msgspec.field(default_factory=list)
    encrypted_content: str | UnsetType | None = UNSET


class FunctionCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomToolCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, done or not. Fields of the request are repeated as they were sent."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    model: str
    output: list[OutputItem]
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    reasoning: ResponseReasoning
    store: bool
    temperature: float | None = None
    text: ResponseTextConfig
    tool_choice: str | ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    service_tier: Literal["default"] = "default"
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "response"
