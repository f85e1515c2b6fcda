"""Writes a response while it is generated: every event of the stream, and the final object out of the same ones."""

import time
import uuid
from typing import Any

import msgspec
from msgspec import UNSET

from shoal.http.errors import ErrorBody
from shoal.policy.batching.plan import TokenLogprobs
from shoal.server.answers import TokenLogprob, Usage
from shoal.server.blocks import Block, BlockReader, Closed, Grown, Opened
from shoal.server.conversation import Conversation, Piece
from shoal.server.responses import events as ev
from shoal.server.responses.answers import (
    CustomToolCallItem,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from shoal.server.responses.conversion import ENCRYPTED, sealed
from shoal.server.responses.request import (
    ResponseReasoning,
    ResponsesRequest,
    ResponseTextConfig,
    ResponseTextFormat,
)
from shoal.server.responses.tools import Offer, OfferedTool

_PREFIXES = {"reasoning": "rs", "text": "msg"}


class ResponseWriter:
    """Feed it the pieces of a conversation; `response` is the object so far."""

    def __init__(self, body: ResponsesRequest, offer: Offer, conversation: Conversation) -> None:
        self._offer = offer
        self._conversation = conversation
        self._sealing = ENCRYPTED in (body.include or ())
        self._reader = BlockReader()
        self._ids: dict[Block, str] = {}
        self._sequence = 0
        self._cut = False
        self.response = _opening(body)

    def feed(self, piece: Piece) -> list[ev.Event]:
        """The events of one more piece. The first one begins the response, the last ends it."""
        self._cut = piece.finish == "length"
        found = self._begin()
        for event in self._reader.feed(piece):
            match event:
                case Opened(block):
                    found += self._opened(block)
                case Grown(block, text, logprobs):
                    found += self._grown(block, text, logprobs)
                case Closed(block):
                    found += self._closed(block)
        if piece.finish is not None:
            found += self._end()
        return found

    def failed(self, error: ErrorBody) -> list[ev.Event]:
        """The events that end a stream when the engine can't go on."""
        found = self._begin()
        failure = ResponseFailure("server_error", error.message)
        self.response = msgspec.structs.replace(self.response, status="failed", error=failure)
        return [*found, ev.ResponseFailed(sequence_number=self._next(), response=self.response)]

    def _begin(self) -> list[ev.Event]:
        if self._sequence:
            return []
        return [
            ev.ResponseCreated(sequence_number=self._next(), response=self.response),
            ev.ResponseInProgress(sequence_number=self._next(), response=self.response),
        ]

    def _end(self) -> list[ev.Event]:
        found: list[ev.Event] = []
        if not self._reader.blocks:
            # Clients look at the first item's text, whatever there is.
            empty = Block("text", 0)
            found += [*self._opened(empty), *self._closed(empty)]
        done = msgspec.structs.replace(
            self.response,
            completed_at=int(time.time()),
            usage=_usage(self._conversation.usage.total(), self._reader),
        )
        if not self._cut:
            self.response = msgspec.structs.replace(done, status="completed")
            return [*found, ev.ResponseCompleted(sequence_number=self._next(), response=self.response)]
        details = IncompleteDetails("max_output_tokens")
        self.response = msgspec.structs.replace(done, status="incomplete", incomplete_details=details)
        return [*found, ev.ResponseIncomplete(sequence_number=self._next(), response=self.response)]

    def _opened(self, block: Block) -> list[ev.Event]:
        self._ids[block] = f"{self._prefix(block)}_{uuid.uuid4().hex}"
        item = self._item(block, "in_progress", whole=False)
        at = block.index
        found: list[ev.Event] = [ev.OutputItemAdded(sequence_number=self._next(), output_index=at, item=item)]
        if block.kind != "call":
            part: OutputText | ReasoningText = OutputText("") if block.kind == "text" else ReasoningText("")
            found.append(ev.ContentPartAdded(**self._place(block), part=part))
        return found

    def _grown(self, block: Block, text: str, logprobs: tuple[TokenLogprobs, ...]) -> list[ev.Event]:
        if block.kind == "text":
            return [ev.TextDelta(**self._place(block), delta=text, logprobs=self._logprobs(list(logprobs)))]
        if block.kind == "reasoning":
            return [ev.ReasoningDelta(**self._place(block), delta=text)]
        if self._is_custom(block):
            # Free text inside a JSON string: it can be told apart from its escapes when it is whole.
            return []
        return [ev.ArgumentsDelta(**self._place(block), delta=text)]

    def _closed(self, block: Block) -> list[ev.Event]:
        item = self._item(block, "incomplete" if self._cut else "completed")
        self.response = msgspec.structs.replace(self.response, output=[*self.response.output, item])
        found: list[ev.Event] = []
        match item:
            case MessageItem(content=[part]):
                found.append(ev.TextDone(**self._place(block), text=part.text, logprobs=part.logprobs))
                found.append(ev.ContentPartDone(**self._place(block), part=part))
            case ReasoningItem(content=[thought]):
                found.append(ev.ReasoningDone(**self._place(block), text=thought.text))
                found.append(ev.ContentPartDone(**self._place(block), part=thought))
            case FunctionCallItem(name=name, arguments=arguments):
                found.append(ev.ArgumentsDone(**self._place(block), name=name, arguments=arguments))
            case CustomToolCallItem(input=text):
                if text:
                    found.append(ev.InputDelta(**self._place(block), delta=text))
                found.append(ev.InputDone(**self._place(block), input=text))
        done = ev.OutputItemDone(sequence_number=self._next(), output_index=block.index, item=item)
        return [*found, done]

    def _item(self, block: Block, status: ItemStatus, *, whole: bool = True) -> OutputItem:
        """The block as an item; without its content where it has only begun."""
        identity, text = self._ids[block], block.text
        if block.kind == "text":
            content = [OutputText(text, logprobs=self._logprobs(block.logprobs))] if whole else []
            return MessageItem(identity, status, content)
        if block.kind == "reasoning":
            seal = sealed(text) if whole and self._sealing else UNSET
            return ReasoningItem(identity, status, [ReasoningText(text)] if whole else [], encrypted_content=seal)
        offered = self._tool(block)
        name = block.name if offered is None else offered.name
        if offered is not None and offered.kind == "custom":
            return CustomToolCallItem(identity, status, block.call_id, name, _free_text(text) if whole else "")
        namespace = UNSET if offered is None else offered.namespace or UNSET
        return FunctionCallItem(identity, status, block.call_id, name, text if whole else "", namespace)

    def _tool(self, block: Block) -> OfferedTool | None:
        return self._offer.tools.get(block.name)

    def _is_custom(self, block: Block) -> bool:
        offered = self._tool(block)
        return offered is not None and offered.kind == "custom"

    def _prefix(self, block: Block) -> str:
        return _PREFIXES.get(block.kind) or ("ctc" if self._is_custom(block) else "fc")

    def _logprobs(self, entries: list[TokenLogprobs]) -> list[TokenLogprob]:
        found = self._conversation.logprobs(entries)
        return [] if found is None else found.content

    def _place(self, block: Block) -> dict[str, Any]:
        """The fields that say where an event belongs."""
        return {"sequence_number": self._next(), "output_index": block.index, "item_id": self._ids[block]}

    def _next(self) -> int:
        number, self._sequence = self._sequence, self._sequence + 1
        return number


def _opening(body: ResponsesRequest) -> ResponseObject:
    return ResponseObject(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        status="in_progress",
        model=body.model,
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        reasoning=body.reasoning or ResponseReasoning(),
        store=body.store is not False,
        temperature=body.temperature,
        text=_text_config(body.text),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=body.tools or [],
        top_logprobs=body.top_logprobs,
        top_p=body.top_p,
        user=body.user,
        prompt_cache_key=body.prompt_cache_key,
        safety_identifier=body.safety_identifier,
    )


def _text_config(text: ResponseTextConfig | None) -> ResponseTextConfig:
    config = text or ResponseTextConfig()
    return (
        config if config.format is not None else msgspec.structs.replace(config, format=ResponseTextFormat("text"))
    )


def _usage(usage: Usage, reader: BlockReader) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(reader.reasoning_of(usage)),
        usage.total_tokens,
    )


class _FreeText(msgspec.Struct, frozen=True):
    input: str


def _free_text(arguments: str) -> str:
    """What a custom tool is called with; the arguments themselves where the model did not keep to their shape."""
    try:
        return msgspec.json.decode(arguments, type=_FreeText).input
    except msgspec.MsgspecError:
        return arguments
