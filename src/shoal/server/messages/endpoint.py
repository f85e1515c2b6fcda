"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

import contextlib
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp

from shoal.engine.frontend import Frontend
from shoal.http.errors import CONTEXT_EXCEEDED, ApiError, ErrorBody, in_messages_words, messages_error_json
from shoal.http.event_stream import EventStream
from shoal.http.sse import named_event
from shoal.server.conversation import Conversation, prepare_conversation
from shoal.server.messages.answers import MessageObject, TokensCounted
from shoal.server.messages.conversion import FIELD_NAMES, chat_request
from shoal.server.messages.request import CountTokensRequest, MessagesRequest
from shoal.server.messages.writer import MessageWriter
from shoal.server.rendering import render_chat
from shoal.server.state import Engine
from shoal.server.streaming import json_answer
from shoal.server.tool_choice import active_tools, settle_choice


async def respond(engine: Engine, body: MessagesRequest, request_id: str) -> ASGIApp:
    """The answer, or its stream. Every check is done before this returns."""
    try:
        conversation = await prepare_conversation(engine, chat_request(body), request_id, shorten=True)
    except ApiError as error:
        raise _renamed(error, body) from None
    answer = _Answer(conversation, request_id)
    if body.stream:
        return EventStream(answer.stream(), on_error=answer.failed)
    return json_answer(await answer.whole())


def count_tokens(frontend: Frontend, body: CountTokensRequest) -> TokensCounted:
    """Prompt tokens of the conversation; slow for long ones, so not for the event loop."""
    try:
        chat = settle_choice(chat_request(body))
        return TokensCounted(len(render_chat(frontend.tokenizer, chat, active_tools(chat))))
    except ApiError as error:
        raise _renamed(error, body) from None


def _renamed(error: ApiError, body: CountTokensRequest) -> ApiError:
    if error.body.code == CONTEXT_EXCEEDED:
        return in_messages_words(error)
    schemas = {f"tools[{i}].function.parameters": f"tools[{i}].input_schema" for i in range(len(body.tools or ()))}
    return error.renamed(FIELD_NAMES | schemas)


class _Answer:
    def __init__(self, conversation: Conversation, request_id: str) -> None:
        self._conversation = conversation
        self._writer = MessageWriter(conversation)
        self._request_id = request_id

    async def whole(self) -> MessageObject:
        async with contextlib.aclosing(self._conversation.pieces()) as pieces:
            async for piece in pieces:
                self._writer.feed(piece)
        return self._writer.message

    async def stream(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._conversation.pieces()) as pieces:
            async for piece in pieces:
                events = self._writer.feed(piece)
                if events:
                    yield b"".join(named_event(event) for event in events)

    def failed(self, error: ErrorBody) -> bytes:
        status = 503 if error.type == "service_unavailable_error" else 500
        return b"event: error\ndata: " + messages_error_json(status, error.message, self._request_id) + b"\n\n"
