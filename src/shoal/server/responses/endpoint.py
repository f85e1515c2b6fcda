"""`POST /v1/responses`, and what is kept of the answers."""

import contextlib
from collections.abc import AsyncGenerator, Sequence

from starlette.types import ASGIApp

from shoal.http.errors import ApiError, ErrorBody, bad_value, needs
from shoal.http.event_stream import EventStream
from shoal.http.sse import named_event
from shoal.server.conversation import Conversation, prepare_conversation
from shoal.server.responses.answers import ResponseObject
from shoal.server.responses.conversion import FIELD_NAMES, chat_request, input_items
from shoal.server.responses.request import InputItem, ResponsesRequest
from shoal.server.responses.store import ResponseStore
from shoal.server.responses.tools import offer_of
from shoal.server.responses.writer import ResponseWriter
from shoal.server.state import Engine
from shoal.server.streaming import json_answer


async def respond(engine: Engine, store: ResponseStore, body: ResponsesRequest, request_id: str) -> ASGIApp:
    """The answer, or its stream. Every check is done before this returns."""
    _check(body)
    offer = offer_of(body.tools or [], body.tool_choice)
    items = store.conversation(body.previous_response_id)
    items += [store.resolve(item, f"input[{place}]") for place, item in enumerate(input_items(body))]
    chat = chat_request(body, items, offer)
    try:
        conversation = await prepare_conversation(engine, chat, request_id, shorten=True)
    except ApiError as error:
        raise error.renamed(FIELD_NAMES | offer.schema_fields) from None
    kept = store if body.store is not False else None
    answer = _Answer(conversation, ResponseWriter(body, offer, conversation), kept, items)
    if body.stream:
        return EventStream(answer.stream(), on_error=answer.failed)
    return json_answer(await answer.whole())


def _check(body: ResponsesRequest) -> None:
    """Refuse what is not served here, rather than answer something else."""
    if body.background:
        raise bad_value("background", True, "expected false: answers are made while the client waits")
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise bad_value(name, getattr(body, name), "expected none: nothing is kept here under such a name")
    if body.stream_options is not None and not body.stream:
        raise needs("stream_options", "stream=true")


class _Answer:
    def __init__(
        self,
        conversation: Conversation,
        writer: ResponseWriter,
        store: ResponseStore | None,
        items: Sequence[InputItem],
    ) -> None:
        self._conversation = conversation
        self._writer = writer
        self._store = store
        self._items = items

    async def whole(self) -> ResponseObject:
        async with contextlib.aclosing(self._conversation.pieces()) as pieces:
            async for piece in pieces:
                self._writer.feed(piece)
        self._keep()
        return self._writer.response

    async def stream(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._conversation.pieces()) as pieces:
            async for piece in pieces:
                events = self._writer.feed(piece)
                if piece.finish is not None:
                    # Before the last event: whoever reads it may refer to the response at once.
                    self._keep()
                if events:
                    yield b"".join(named_event(event) for event in events)

    def failed(self, error: ErrorBody) -> bytes:
        return b"".join(named_event(event) for event in self._writer.failed(error))

    def _keep(self) -> None:
        if self._store is not None:
            self._store.put(self._writer.response, self._items)
