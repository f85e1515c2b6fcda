"""The events of a streamed response: the tag of each struct is its `type` and its SSE `event`."""

import msgspec

from shoal.server.answers import TokenLogprob
from shoal.server.responses.answers import OutputItem, OutputText, ReasoningText, ResponseObject


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int
    """From 0, one more with every event of the stream."""


class ResponseCreated(Event, frozen=True, kw_only=True, tag="response.created"):
    response: ResponseObject


class ResponseInProgress(Event, frozen=True, kw_only=True, tag="response.in_progress"):
    response: ResponseObject


class ResponseCompleted(Event, frozen=True, kw_only=True, tag="response.completed"):
    response: ResponseObject


class ResponseIncomplete(Event, frozen=True, kw_only=True, tag="response.incomplete"):
    response: ResponseObject


class ResponseFailed(Event, frozen=True, kw_only=True, tag="response.failed"):
    response: ResponseObject


class ItemEvent(Event, frozen=True, kw_only=True):
    output_index: int


class OutputItemAdded(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    item: OutputItem


class OutputItemDone(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    item: OutputItem


class PartEvent(ItemEvent, frozen=True, kw_only=True):
    item_id: str
    content_index: int = 0


class ContentPartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class ContentPartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class TextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TokenLogprob]


class TextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class CallEvent(ItemEvent, frozen=True, kw_only=True):
    item_id: str


class ArgumentsDelta(CallEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(CallEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class InputDelta(CallEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(CallEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str
