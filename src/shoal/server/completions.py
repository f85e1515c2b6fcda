"""`/v1/completions`: prompts as text or token ids, several at once, echoed where asked for."""

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import ASGIApp

from shoal.engine.kv_transfer import KvTransferParams
from shoal.engine.outputs import RequestOutput
from shoal.http.errors import ApiError, bad_value, needs
from shoal.http.event_stream import EventStream, off_loop_if
from shoal.http.sse import DONE_EVENT, event
from shoal.policy.batching.plan import TokenLogprobs
from shoal.server.answers import (
    Completion,
    CompletionChoice,
    CompletionFinish,
    CompletionLogprobs,
    PromptLogprobs,
    Usage,
)
from shoal.server.completion_jobs import CompletionJob, is_one, prepare_jobs
from shoal.server.generation import merged, run
from shoal.server.logprobs import completion_logprobs, completion_naming, prompt_logprobs
from shoal.server.parameters import guided_params
from shoal.server.protocol import CompletionRequest
from shoal.server.state import Engine
from shoal.server.streaming import StreamUsage, UsageMode, json_answer
from shoal.server.text_offsets import TextOffsets

_OFF_LOOP_SIZE = 4096
"""Prompts above this many characters or ids are prepared in a thread, so that other streams flow on."""
_OFF_LOOP_TOKENS = 256
"""Log-probabilities of more tokens than this are put into their shape in a thread: some 20 µs per token."""


async def respond(engine: Engine, body: CompletionRequest, request_id: str) -> ASGIApp:
    """The answer, or its stream. Every check is done before this returns."""
    _check(body)
    heavy = _size(body.prompt) > _OFF_LOOP_SIZE or guided_params(body) is not None
    jobs = await off_loop_if(heavy, lambda: prepare_jobs(engine.frontend, body, request_id))
    answer = _Answer(engine, body, jobs, request_id)
    if body.stream:
        return EventStream(answer.stream())
    return json_answer(await answer.whole())


def _size(prompt: "str | list[str | int | list[int]]") -> int:
    """Characters and ids, at most as many as make a prompt large."""
    if isinstance(prompt, str):
        return len(prompt)
    inner = (len(item) for item in prompt[:_OFF_LOOP_SIZE] if not isinstance(item, int))
    return len(prompt) + sum(inner)


def _check(body: CompletionRequest) -> None:
    if body.suffix:
        raise ApiError(
            400, "suffix: filling in the middle is not supported", param="suffix", code="unsupported_parameter"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_value("best_of", body.best_of, f"candidates are not ranked, so it must equal n ({body.n or 1})")
    if body.stream_options is not None and not body.stream:
        raise needs("stream_options", "stream=true")
    if body.resume_token_ids and (body.echo or not is_one(body.prompt)):
        raise bad_value(
            "resume_token_ids", f"{len(body.resume_token_ids)} tokens", "it goes with one prompt and without echo"
        )
    asked = body.kv_transfer_params
    if asked is not None and asked.do_remote_decode and not is_one(body.prompt):
        raise bad_value("kv_transfer_params", "do_remote_decode", "it goes with one prompt")
    if body.max_tokens == 0 and not body.echo:
        raise bad_value("max_tokens", 0, "expected at least 1, or 0 together with echo=true")


class _Part:
    """A piece of one choice: everything of it, or what one output brought."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt: tuple[TokenLogprobs, ...] = ()
        self.finish: CompletionFinish | None = None
        self.stop_reason: str | int | None = None
        self.kv_transfer: KvTransferParams | None = None

    @property
    def tokens_shown(self) -> int:
        """Tokens whose log-probabilities are shown."""
        return len(self.prompt) + len(self.logprobs)

    def add(self, output: RequestOutput, *, generated: bool) -> None:
        """Take in an output; without `generated` only what it says about the prompt."""
        self.prompt = output.prompt_logprobs or self.prompt
        if generated:
            self.text += output.text
            self.tokens.extend(output.token_ids)
            self.logprobs.extend(output.logprobs)
            self.stop_reason = output.stop_reason
        if output.finish_reason is not None:
            self.kv_transfer = output.kv_transfer
            self.finish = "stop" if generated and output.finish_reason == "stop" else "length"


class _Answer:
    """One request to the endpoint: `n` choices for each of its prompts, numbered prompt by prompt."""

    def __init__(
        self, engine: Engine, body: CompletionRequest, jobs: Sequence[CompletionJob], request_id: str
    ) -> None:
        self._engine, self._tokenizer = engine, engine.frontend.tokenizer
        self._body = body
        self._jobs = jobs
        self._n = body.n or 1
        self._id = f"cmpl-{request_id}"
        self._created = int(time.time())
        self._generated = body.max_tokens != 0
        self._usage = StreamUsage(len(jobs), sum(len(job.request.output) for job in jobs))
        self._offsets = [self._new_offsets(job) for job in jobs for _ in range(self._n)]

    async def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        streams = [run(self._engine, job.request) for job in self._jobs]
        async with contextlib.aclosing(merged(streams)) as outputs:
            async for place, engine_output in outputs:
                output = self._jobs[place].of_prompt(engine_output)
                self._usage.add(place, output, generated=self._generated)
                yield place * self._n + output.index, output

    def _completion(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(self._id, self._created, self._body.model, choices, usage=usage)

    async def whole(self) -> Completion:
        parts = [_Part() for _ in range(len(self._jobs) * self._n)]
        async with contextlib.aclosing(self._outputs()) as outputs:
            async for index, output in outputs:
                parts[index].add(output, generated=self._generated)
        heavy = sum(part.tokens_shown for part in parts) > _OFF_LOOP_TOKENS
        choices = await off_loop_if(
            heavy,
            lambda: [self._choice(index, part, opening=True) for index, part in enumerate(parts)],
        )
        return msgspec.structs.replace(
            self._completion(choices, self._usage.total()), kv_transfer_params=parts[0].kv_transfer or UNSET
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The events. A choice's first one holds the echoed prompt."""
        mode = UsageMode.of(self._body.stream_options)
        opened: set[int] = set()
        async with contextlib.aclosing(self._outputs()) as outputs:
            async for index, output in outputs:
                part = _Part()
                part.add(output, generated=self._generated)
                make = partial(self._choice, index, part, opening=index not in opened)
                choice = await off_loop_if(part.tokens_shown > _OFF_LOOP_TOKENS, make)
                if not choice.text and choice.finish_reason is None and not part.tokens:
                    continue
                opened.add(index)
                yield event(self._completion([choice], mode.within(self._usage)))
        if mode.counted:
            yield event(self._completion([], self._usage.total()))
        yield DONE_EVENT

    def _new_offsets(self, job: CompletionJob) -> TextOffsets:
        skipped = self._body.skip_special_tokens is not False
        return TextOffsets(self._tokenizer, skip_special_tokens=skipped, continues=job.request.text_prompt)

    def _choice(self, index: int, part: _Part, *, opening: bool) -> CompletionChoice:
        body, job = self._body, self._jobs[index // self._n]
        echoed = self._echo(job) if body.echo and opening else None
        return CompletionChoice(
            index=index,
            text=(echoed or "") + part.text,
            finish_reason=part.finish,
            logprobs=self._logprobs(index, part, echoed),
            stop_reason=part.stop_reason,
            prompt_logprobs=self._prompt_logprobs(part) if opening else UNSET,
            token_ids=part.tokens if body.return_token_ids else UNSET,
            prompt_token_ids=list(job.prompt) if body.return_token_ids and opening else UNSET,
        )

    def _echo(self, job: CompletionJob) -> str:
        """The prompt's text: just as the client wrote it, special tokens included."""
        if job.text is not None:
            return job.text
        return self._tokenizer.decode(job.prompt, skip_special_tokens=self._body.skip_special_tokens is True)

    def _logprobs(self, index: int, part: _Part, echoed: str | None) -> CompletionLogprobs | None:
        top = self._body.logprobs
        if top is None:
            return None
        prompt = () if echoed is None else self._jobs[index // self._n].prompt
        entries: list[TokenLogprobs | None] = [None, *part.prompt] if prompt else []
        offsets = self._offsets[index]
        places = [*offsets.of_echo(prompt, echoed or ""), *offsets.of_output(part.tokens)]
        name = completion_naming(self._body, self._tokenizer)
        return completion_logprobs(name, [*prompt, *part.tokens], [*entries, *part.logprobs], top, places)

    def _prompt_logprobs(self, part: _Part) -> PromptLogprobs | UnsetType:
        if self._body.prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(self._tokenizer, part.prompt)
