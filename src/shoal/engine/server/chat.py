"""`/v1/chat/completions`: conversation → tokens → answer, whole or streamed, with tools."""

import contextlib
import time
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import ASGIApp

from shoal.engine.outputs import RequestOutput
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.params import GuidedParams
from shoal.engine.server.answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatFinish,
    ChatLogprobs,
    ChatMessageOut,
    ChunkChoice,
    Delta,
    PromptLogprobs,
    Usage,
)
from shoal.engine.server.connection import off_loop_if
from shoal.engine.server.errors import ApiError, bad_value
from shoal.engine.server.generation import prepare, run
from shoal.engine.server.logprobs import chat_logprobs, prompt_logprobs
from shoal.engine.server.parameters import guided_params, sampling_params
from shoal.engine.server.protocol import ChatRequest, Tool
from shoal.engine.server.readers import Collected, Reader, parsed_notation, reader_for
from shoal.engine.server.rendering import render_chat
from shoal.engine.server.state import Engine
from shoal.engine.server.streaming import DONE, EventStream, StreamUsage, UsageMode, event, json_answer
from shoal.engine.server.tool_choice import active_tools, tool_constraint
from shoal.engine.text.tools import needs_special_tokens
from shoal.policy.batching.plan import TokenLogprobs

_OFF_LOOP_CHARACTERS = 4096
"""Conversations above this are rendered and tokenized in a thread, so that other streams flow on."""


async def respond(engine: Engine, body: ChatRequest, request_id: str) -> ASGIApp:
    """The answer, or its stream. Every check is done before this returns."""
    _check(body)
    tools = active_tools(body)
    guided = _constraint(body)
    heavy = guided is not None or _size(body) > _OFF_LOOP_CHARACTERS
    request = await off_loop_if(heavy, lambda: _prepare(engine, body, tools, guided, request_id))
    answer = _Answer(engine, body, request, request_id)
    if body.stream:
        return EventStream(answer.stream())
    return json_answer(await answer.whole())


def _prepare(
    engine: Engine, body: ChatRequest, tools: list[Tool], guided: GuidedParams | None, request_id: str
) -> EngineRequest:
    params = sampling_params(
        body,
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        guided=guided,
    )
    notation = parsed_notation(engine, body)
    if notation is not None and needs_special_tokens(notation):
        # The marks of a call are special tokens here: skipped, nobody could find the calls.
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    return prepare(engine, body, render_chat(engine.tokenizer, body, tools), params, request_id)


def _check(body: ChatRequest) -> None:
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise bad_value(
            "max_completion_tokens", body.max_completion_tokens, "it differs from max_tokens; give one of the two"
        )
    if 0 in (body.max_tokens, body.max_completion_tokens):
        name = "max_tokens" if body.max_tokens == 0 else "max_completion_tokens"
        raise bad_value(name, 0, "expected at least 1")
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_value("top_logprobs", body.top_logprobs, "it needs logprobs=true")
    if body.stream_options is not None and not body.stream:
        raise bad_value("stream_options", "object", "it needs stream=true")
    if body.resume_token_ids and body.tools:
        raise bad_value("resume_token_ids", f"{len(body.resume_token_ids)} tokens", "it excludes tools")
    if body.continue_final_message and body.add_generation_prompt:
        raise bad_value("continue_final_message", True, "it excludes add_generation_prompt=true")


def _constraint(body: ChatRequest) -> GuidedParams | None:
    asked, calling = guided_params(body), tool_constraint(body, body.tools or [])
    if asked is not None and calling is not None:
        raise ApiError(
            400,
            "tool_choice already constrains the output; leave out response_format and guided_*",
            param="tool_choice",
            code="invalid_value",
        )
    return asked or calling


def _size(body: ChatRequest) -> int:
    size = 1000 * len(body.tools or ())
    for message in body.messages:
        parts = (
            [message.content] if isinstance(message.content, str) else [p.text or "" for p in message.content or ()]
        )
        size += sum(len(part) for part in parts)
    return size


class _Answer:
    """One request to the endpoint, with its `n` choices."""

    def __init__(self, engine: Engine, body: ChatRequest, request: EngineRequest, request_id: str) -> None:
        self._engine = engine
        self._body = body
        self._request = request
        self._n = body.n or 1
        self._id = f"chatcmpl-{request_id}"
        self._created = int(time.time())
        self._usage = StreamUsage(1, len(request.output))

    async def _outputs(self) -> AsyncGenerator[RequestOutput, None]:
        async with contextlib.aclosing(run(self._engine, self._request)) as outputs:
            async for output in outputs:
                self._usage.add(0, output)
                yield output

    def _readers(self) -> list[Reader]:
        return [reader_for(self._engine, self._body) for _ in range(self._n)]

    async def whole(self) -> ChatCompletion:
        readers = self._readers()
        collected = [Collected() for _ in readers]
        tokens: list[list[int]] = [[] for _ in readers]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in readers]
        ends: list[RequestOutput | None] = [None] * self._n
        asked: PromptLogprobs | UnsetType = UNSET
        async with contextlib.aclosing(self._outputs()) as outputs:
            async for output in outputs:
                index = output.index
                collected[index].add(readers[index].feed(output.text))
                tokens[index].extend(output.token_ids)
                logprobs[index].extend(output.logprobs)
                if output.prompt_logprobs and self._body.prompt_logprobs is not None:
                    asked = prompt_logprobs(self._engine.tokenizer, output.prompt_logprobs)
                if output.finish_reason is not None:
                    collected[index].add(readers[index].close())
                    ends[index] = output
        choices = [
            ChatChoice(
                index=i,
                message=_message(collected[i]),
                finish_reason=_finish(ends[i], readers[i]),
                logprobs=self._logprobs(logprobs[i]),
                stop_reason=None if (end := ends[i]) is None else end.stop_reason,
                token_ids=tokens[i] if self._body.return_token_ids else UNSET,
            )
            for i in range(self._n)
        ]
        return ChatCompletion(
            self._id,
            self._created,
            self._body.model,
            choices,
            self._usage.total(),
            prompt_logprobs=asked,
            prompt_token_ids=list(self._request.prompt) if self._body.return_token_ids else UNSET,
            kv_transfer_params=UNSET if (end := ends[0]) is None else end.kv_transfer or UNSET,
        )

    def _logprobs(self, entries: "list[TokenLogprobs] | tuple[TokenLogprobs, ...]") -> ChatLogprobs | None:
        top = self._request.params.logprobs
        return None if top is None else chat_logprobs(self._engine.tokenizer, entries, top)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The events: a role for every choice, its deltas, its end; then the usage if asked for."""
        mode = UsageMode.of(self._body.stream_options)
        readers = self._readers()
        opened = [False] * self._n

        prompt: list[int] | UnsetType = list(self._request.prompt) if self._body.return_token_ids else UNSET

        def chunk(choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> bytes:
            nonlocal prompt
            made = ChatChunk(
                self._id, self._created, self._body.model, choices, usage=usage, prompt_token_ids=prompt
            )
            prompt = UNSET
            return event(made)

        async with contextlib.aclosing(self._outputs()) as outputs:
            async for output in outputs:
                usage = mode.within(self._usage)
                choices = self._choices(output, readers[output.index])
                if not opened[output.index]:
                    opened[output.index] = True
                    choices.insert(0, ChunkChoice(output.index, Delta(role="assistant", content="")))
                if choices:
                    yield b"".join(chunk([choice], usage) for choice in choices)
        if mode.counted:
            yield chunk([], self._usage.total())
        yield DONE

    def _choices(self, output: RequestOutput, reader: Reader) -> list[ChunkChoice]:
        """The chunks one output becomes: usually one; none while text is held back."""
        deltas = reader.feed(output.text)
        if output.finish_reason is not None:
            deltas += reader.close()
        logprobs = self._logprobs(output.logprobs) if output.logprobs else None
        tokens = list(output.token_ids) if self._body.return_token_ids else UNSET
        if not deltas and (logprobs is not None or tokens):
            deltas = [Delta(content="")]
        choices = []
        for delta in deltas:
            choices.append(ChunkChoice(output.index, delta, logprobs, token_ids=tokens))
            # They belong to the output as a whole: once is enough.
            logprobs, tokens = None, UNSET
        if output.finish_reason is not None:
            finish = _finish(output, reader)
            choices.append(ChunkChoice(output.index, Delta(), finish_reason=finish, stop_reason=output.stop_reason))
        return choices


def _message(collected: Collected) -> ChatMessageOut:
    calls = collected.calls()
    if not calls:
        return ChatMessageOut(collected.content)
    return ChatMessageOut(collected.content or None, calls)


def _finish(end: RequestOutput | None, reader: Reader) -> ChatFinish:
    if end is None or end.finish_reason == "length":
        return "length"
    return "tool_calls" if reader.called else "stop"
