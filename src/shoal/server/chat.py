"""`/v1/chat/completions`: a conversation's answer in OpenAI's chat shape, whole or streamed, with tools."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from msgspec import UNSET, UnsetType
from starlette.types import ASGIApp

from shoal.engine.outputs import RequestOutput
from shoal.http.errors import bad_value, needs
from shoal.http.event_stream import EventStream
from shoal.http.sse import DONE_EVENT, event
from shoal.server.answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessageOut,
    ChunkChoice,
    Delta,
    PromptLogprobs,
    TokenLogprob,
    Usage,
)
from shoal.server.conversation import Conversation, Piece, check_limits, prepare_conversation
from shoal.server.logprobs import prompt_logprobs
from shoal.server.protocol import ChatRequest
from shoal.server.readers import Collected
from shoal.server.state import Engine
from shoal.server.streaming import UsageMode, json_answer


async def respond(engine: Engine, body: ChatRequest, request_id: str) -> ASGIApp:
    """The answer, or its stream. Every check is done before this returns."""
    _check(body)
    answer = _Answer(await prepare_conversation(engine, body, request_id), request_id)
    if body.stream:
        return EventStream(answer.stream())
    return json_answer(await answer.whole())


def _check(body: ChatRequest) -> None:
    check_limits(body)
    if body.top_logprobs and not body.logprobs:
        raise bad_value("top_logprobs", body.top_logprobs, "it needs logprobs=true")
    if body.stream_options is not None and not body.stream:
        raise needs("stream_options", "stream=true")
    if body.resume_token_ids and body.tools:
        raise bad_value("resume_token_ids", f"{len(body.resume_token_ids)} tokens", "it excludes tools")
    if body.continue_final_message and body.add_generation_prompt:
        raise bad_value("continue_final_message", True, "it excludes add_generation_prompt=true")


class _Answer:
    """One request to the endpoint, with its `n` choices."""

    def __init__(self, conversation: Conversation, request_id: str) -> None:
        self._conversation = conversation
        self._body = conversation.body
        self._n = conversation.choices
        self._id = f"chatcmpl-{request_id}"
        self._created = int(time.time())
        prompt = conversation.request.prompt
        self._prompt: list[int] | UnsetType = list(prompt) if self._body.return_token_ids else UNSET

    async def whole(self) -> ChatCompletion:
        conversation = self._conversation
        collected = [Collected() for _ in range(self._n)]
        tokens: list[list[int]] = [[] for _ in range(self._n)]
        logprobs: list[list[TokenLogprob]] = [[] for _ in range(self._n)]
        ends: list[Piece | None] = [None] * self._n
        asked: PromptLogprobs | UnsetType = UNSET
        async with contextlib.aclosing(conversation.pieces()) as pieces:
            async for piece in pieces:
                index, output = piece.index, piece.output
                collected[index].add(piece.deltas)
                tokens[index].extend(output.token_ids)
                # As they come, since all of a long answer's at its end would hold up the loop.
                if output.logprobs and (shown := conversation.logprobs(output.logprobs)) is not None:
                    logprobs[index].extend(shown.content or ())
                if output.prompt_logprobs and self._body.prompt_logprobs is not None:
                    asked = await asyncio.to_thread(
                        prompt_logprobs, conversation.engine.frontend.tokenizer, output.prompt_logprobs
                    )
                if piece.finish is not None:
                    ends[index] = piece
        choices = [
            ChatChoice(
                index=i,
                message=_message(collected[i]),
                finish_reason="length" if (end := ends[i]) is None or end.finish is None else end.finish,
                logprobs=None if conversation.request.params.logprobs is None else ChatLogprobs(logprobs[i]),
                stop_reason=None if end is None else end.output.stop_reason,
                token_ids=tokens[i] if self._body.return_token_ids else UNSET,
            )
            for i in range(self._n)
        ]
        return ChatCompletion(
            self._id,
            self._created,
            self._body.model,
            choices,
            conversation.usage.total(),
            prompt_logprobs=asked,
            prompt_token_ids=self._prompt,
            kv_transfer_params=UNSET if (end := ends[0]) is None else end.output.kv_transfer or UNSET,
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The events: a role for every choice, its deltas, its end; then the usage if asked for."""
        mode = UsageMode.of(self._body.stream_options)
        opened = [False] * self._n
        prompt = self._prompt

        def chunk(choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> bytes:
            nonlocal prompt
            made = ChatChunk(
                self._id, self._created, self._body.model, choices, usage=usage, prompt_token_ids=prompt
            )
            prompt = UNSET
            return event(made)

        async with contextlib.aclosing(self._conversation.pieces()) as pieces:
            async for piece in pieces:
                usage = mode.within(self._conversation.usage)
                choices = self._choices(piece)
                if not opened[piece.index]:
                    opened[piece.index] = True
                    choices.insert(0, ChunkChoice(piece.index, Delta(role="assistant", content="")))
                if choices:
                    yield b"".join(chunk([choice], usage) for choice in choices)
        if mode.counted:
            yield chunk([], self._conversation.usage.total())
        yield DONE_EVENT

    def _choices(self, piece: Piece) -> list[ChunkChoice]:
        """The chunks one output becomes: usually one; none while text is held back."""
        output: RequestOutput = piece.output
        logprobs = self._conversation.logprobs(output.logprobs) if output.logprobs else None
        tokens = list(output.token_ids) if self._body.return_token_ids else UNSET
        deltas = piece.deltas
        if not deltas and (logprobs is not None or tokens):
            deltas = [Delta(content="")]
        choices = []
        for delta in deltas:
            choices.append(ChunkChoice(piece.index, delta, logprobs, token_ids=tokens))
            # They belong to the output as a whole: once is enough.
            logprobs, tokens = None, UNSET
        if piece.finish is not None:
            choices.append(
                ChunkChoice(piece.index, Delta(), finish_reason=piece.finish, stop_reason=output.stop_reason)
            )
        return choices


def _message(collected: Collected) -> ChatMessageOut:
    calls, reasoning = collected.calls(), collected.reasoning or UNSET
    return ChatMessageOut(
        (collected.content or None) if calls else collected.content,
        calls or UNSET,
        reasoning_content=reasoning,
        reasoning=reasoning,
    )
