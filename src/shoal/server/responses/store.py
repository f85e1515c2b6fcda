"""Responses kept in this replica's memory, so that a later request can refer to them.

Bounded in number and in bytes, oldest first out. Replicas of a fleet share nothing: a response is known only to the
one that made it, and clients that must not depend on it send the whole conversation and `store: false`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.http.errors import ApiError, bad_value
from shoal.server.responses.answers import (
    CustomToolCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponseObject,
)
from shoal.server.responses.request import InputItem, InputPart

MAX_RESPONSES = 1024
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    response: ResponseObject
    items: tuple[InputItem, ...]
    """The conversation before it: what its own input and the responses it went on from hold."""
    size: int

    def conversation(self) -> list[InputItem]:
        """All items up to the end of its answer."""
        return [*self.items, *(as_input(item) for item in self.response.output)]


class ResponseStore:
    """Used by the event loop only."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, tuple[str, OutputItem]] = {}
        self._bytes = 0

    def put(self, response: ResponseObject, items: Sequence[InputItem]) -> None:
        """Keep it, in place of the oldest where room is short; one that is too large for all of it is not kept."""
        size = len(msgspec.json.encode(response)) + len(msgspec.json.encode(items))
        if size > self._max_bytes:
            return
        self._responses[response.id] = StoredResponse(response, tuple(items), size)
        self._bytes += size
        for item in response.output:
            self._items[item.id] = (response.id, item)
        while len(self._responses) > self._max_responses or self._bytes > self._max_bytes:
            self._drop(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse:
        """`ApiError` 404 if it isn't here."""
        if (found := self._responses.get(response_id)) is None:
            raise ApiError(404, _not_here(response_id), param="response_id", code="not_found")
        return found

    def delete(self, response_id: str) -> None:
        self.get(response_id)
        self._drop(response_id)

    def conversation(self, response_id: str | None) -> list[InputItem]:
        """Return the items before a request with this `previous_response_id`; `ApiError` 400 if it isn't here."""
        if response_id is None:
            return []
        if (found := self._responses.get(response_id)) is None:
            message = f"previous_response_id: {_not_here(response_id)}; send the whole conversation as input"
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
        return found.conversation()

    def resolve(self, item: InputItem, at: str) -> InputItem:
        """An `item_reference` as the item it means; any other item as it is."""
        if item.type != "item_reference":
            return item
        if (found := self._items.get(item.id or "")) is None:
            raise bad_value(f"{at}.id", item.id, "no stored response has this item; send the item itself")
        return as_input(found[1])

    def _drop(self, response_id: str) -> None:
        stored = self._responses.pop(response_id)
        self._bytes -= stored.size
        for item in stored.response.output:
            self._items.pop(item.id, None)


def as_input(item: OutputItem) -> InputItem:
    """An output item as a client would send it back."""
    match item:
        case MessageItem():
            parts = [InputPart("output_text", part.text) for part in item.content]
            return InputItem(type="message", id=item.id, role="assistant", content=parts)
        case ReasoningItem():
            parts = [InputPart("reasoning_text", part.text) for part in item.content]
            return InputItem(type="reasoning", id=item.id, content=parts)
        case FunctionCallItem():
            return InputItem(
                type="function_call",
                id=item.id,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
                namespace=item.namespace or None,
            )
        case CustomToolCallItem():
            return InputItem(
                type="custom_tool_call", id=item.id, call_id=item.call_id, name=item.name, input=item.input
            )


def _not_here(response_id: str) -> str:
    return (
        f"response {response_id[:100]!r} is not here: it was made by another replica, or with store=false, "
        "was deleted, or gave way to newer ones"
    )
