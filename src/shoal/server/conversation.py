"""The core that answers a conversation, whatever API asked: render, constrain, generate, read.

chat ──────┐
responses ─┼─► ChatRequest ─► Conversation ─► pieces: what each output says, in deltas ─► the API's own shape
messages ──┘
"""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import msgspec

from shoal.engine.outputs import RequestOutput
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.params import GuidedParams
from shoal.http.errors import ApiError, bad_value
from shoal.http.event_stream import off_loop_if
from shoal.policy.batching.plan import TokenLogprobs
from shoal.server.answer_format import AnswerFormat, answer_format
from shoal.server.answers import ChatFinish, ChatLogprobs, Delta
from shoal.server.generation import prepare, run
from shoal.server.logprobs import chat_logprobs, naming
from shoal.server.parameters import guided_params, sampling_params
from shoal.server.prompts import truncated
from shoal.server.protocol import ChatRequest, Tool
from shoal.server.readers import Reader
from shoal.server.rendering import render_chat
from shoal.server.state import Engine
from shoal.server.streaming import StreamUsage
from shoal.server.tool_choice import active_tools, constrains, settle_choice, tool_constraint

_OFF_LOOP_CHARACTERS = 4096
"""Conversations above this are rendered and tokenized in a thread, so that other streams flow on."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output of the engine adds to choice `index`: often one delta; none while text is held back."""

    index: int
    deltas: list[Delta]
    output: RequestOutput
    finish: ChatFinish | None
    """Set with the last piece of a choice."""


class Conversation:
    """One checked and rendered request; iterate `pieces()` once to answer it."""

    def __init__(
        self, engine: Engine, body: ChatRequest, request: EngineRequest, form: AnswerFormat, *, shortened: bool
    ) -> None:
        self.engine = engine
        self.body = body
        self.request = request
        self.choices = body.n or 1
        self.shortened = shortened
        """The request's token limit was lowered to what the context has left."""
        self.usage = StreamUsage(1, len(request.output))
        self._readers = [form.reader() for _ in range(self.choices)]
        self._counters = [form.counter() for _ in range(self.choices)] if form.counter is not None else []
        if request.output:
            self._resume(request)

    def _resume(self, request: EngineRequest) -> None:
        """Bring readers to where another replica stopped: its client has what they say of that."""
        skip = request.params.skip_special_tokens
        text = self.engine.frontend.tokenizer.decode(request.output, skip_special_tokens=skip)
        for index, reader in enumerate(self._readers):
            reader.feed(text)
            self._count(index, request.output)

    def _count(self, index: int, token_ids: Sequence[int]) -> None:
        if self._counters:
            self._counters[index].add(token_ids)
            self.usage.reasoning_tokens = sum(counter.tokens for counter in self._counters)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Closing it aborts the request; a failure of the engine is an `ApiError`."""
        async with contextlib.aclosing(run(self.engine, self.request)) as outputs:
            async for output in outputs:
                self.usage.add(0, output)
                self._count(output.index, output.token_ids)
                reader = self._readers[output.index]
                deltas, finish = reader.feed(output.text), None
                if output.finish_reason is not None:
                    deltas = [*deltas, *reader.close()]
                    finish = _finish(output, reader)
                yield Piece(output.index, deltas, output, finish)

    def logprobs(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        """Log-probabilities in the API's shape; None where the request asked for none."""
        top, tokenizer = self.request.params.logprobs, self.engine.frontend.tokenizer
        return None if top is None else chat_logprobs(tokenizer, entries, top, naming(self.body, tokenizer))


async def prepare_conversation(
    engine: Engine, body: ChatRequest, request_id: str, *, shorten: bool = False
) -> Conversation:
    """Do every check that can be done before the engine is asked; `ApiError` 400 names the field.

    `shorten`: a token limit above what the context has left is lowered to it, not refused.
    """
    body = settle_choice(body)
    tools = active_tools(body)
    asked = guided_params(body)
    if asked is not None and constrains(body):
        raise ApiError(
            400,
            "tool_choice already constrains the output; leave out response_format and guided_*",
            param="tool_choice",
            code="invalid_value",
        )
    heavy = asked is not None or constrains(body) or _size(body) > _OFF_LOOP_CHARACTERS
    return await off_loop_if(heavy, lambda: _prepare(engine, body, tools, asked, request_id, shorten))


def _prepare(
    engine: Engine,
    body: ChatRequest,
    tools: list[Tool],
    guided: GuidedParams | None,
    request_id: str,
    shorten: bool,
) -> Conversation:
    frontend, constraint = engine.frontend, guided or tool_constraint(body)
    params = sampling_params(
        body,
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        defaults=frontend.sampling_defaults,
        guided=constraint,
    )
    cut = body.truncate_prompt_tokens
    rendered = render_chat(frontend.tokenizer, body, tools, limit=frontend.max_model_len if cut is None else None)
    prompt = truncated(rendered, cut, frontend.max_model_len - max(params.max_tokens or 1, params.min_tokens))
    form = answer_format(frontend, body, prompt, guided=constraint is not None)
    if form.keeps_special_tokens:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    left, shortened = max(1, frontend.max_model_len - len(prompt)), False
    if params.max_tokens is None and (usual := frontend.sampling_defaults.max_new_tokens) is not None:
        params = msgspec.structs.replace(params, max_tokens=min(left, max(usual, params.min_tokens)))
    if shorten and params.max_tokens is not None and params.max_tokens > left:
        params, shortened = msgspec.structs.replace(params, max_tokens=left), True
    # What goes on a text keeps the leading space that begins one for some tokenizers.
    continued = body.continue_final_message is True
    request = prepare(frontend, body, prompt, params, request_id, text_prompt=continued)
    return Conversation(engine, body, request, form, shortened=shortened)


def check_limits(body: ChatRequest) -> None:
    """Refuse token limits and options that contradict each other."""
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise bad_value(
            "max_completion_tokens", body.max_completion_tokens, "it differs from max_tokens; give one of the two"
        )
    if 0 in (body.max_tokens, body.max_completion_tokens):
        name = "max_tokens" if body.max_tokens == 0 else "max_completion_tokens"
        raise bad_value(name, 0, "expected at least 1")


def _size(body: ChatRequest) -> int:
    size = 1000 * len(body.tools or ())
    for message in body.messages:
        parts = (
            [message.content] if isinstance(message.content, str) else [p.text or "" for p in message.content or ()]
        )
        size += sum(len(part) for part in parts)
    return size


def _finish(end: RequestOutput, reader: Reader) -> ChatFinish:
    if end.finish_reason == "length":
        return "length"
    return "tool_calls" if reader.called else "stop"
