"""The offline engine: prompts in, answers out, in the caller's own thread."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from shoal.engine.errors import EngineDead
from shoal.engine.load import load_engine
from shoal.engine.options import EngineOptions, LoraModule
from shoal.engine.outputs import EngineStats, RequestOutput
from shoal.engine.progress import GenerationProgress
from shoal.engine.sampling.params import SamplingParams
from shoal.engine.text.chat import Message
from shoal.engine.text.tokenizer import Tokenizer
from shoal.policy.batching.plan import TokenLogprobs

Prompt = str | Sequence[int]


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One of the `n` answers to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    """One entry a token, when asked for."""
    finish_reason: str
    """`stop` or `length`; `error` when the sequence could not go on, then `error` says why."""
    stop_reason: str | int | None = None
    error: str | None = None


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one prompt, in the order the prompts came."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class LLM:
    """A model loaded in this process.

    >>> with LLM("smollm2-135m") as llm:                                        # doctest: +SKIP
    ...     llm.generate(["The sea is"], SamplingParams(temperature=0))[0].outputs[0].text

    `engine_options` are the fields of `EngineOptions`. Raises InvalidOption, SourceError or EngineError.
    """

    def __init__(
        self, model: str, *, loras: Mapping[str, str] | Sequence[LoraModule] = (), **engine_options: Any
    ) -> None:
        """`loras`: directories of LoRA adapters by name, for `generate(lora=name)`."""
        named = [LoraModule(*item) for item in loras.items()] if isinstance(loras, Mapping) else loras
        engine_options |= {"loras": tuple(named)}
        try:
            options = EngineOptions(model=model, **engine_options)
        except TypeError:
            known = EngineOptions.__struct_fields__
            unknown = [name for name in engine_options if name not in known]
            if not unknown:
                raise
            raise TypeError(f"unknown engine option {unknown[0]!r}; known: {', '.join(known)}") from None
        self._core, self._frontend = load_engine(options)
        self._requests = 0

    @property
    def tokenizer(self) -> Tokenizer:
        return self._frontend.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._frontend.max_model_len

    def default_params(self) -> SamplingParams:
        """What the model recommends (`generation_config.json`, GGUF's `general.sampling.*`), less a token limit."""
        return self._frontend.sampling_defaults.params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[GenerateResult]:
        """Answers to all prompts, batched continuously. `params` and `lora`: one for all, or one per prompt.

        Without `params` the model's own apply (`default_params`). A prompt is a string or token ids; `lora` names
        an adapter, None the base model. Raises InvalidRequest naming the field before anything is computed,
        EngineDead when the replica cannot go on. `use_tqdm` shows a progress bar on a terminal.
        """
        listed = _listed(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.default_params()] * len(listed)
        if len(params) != len(listed):
            raise ValueError(
                f"{len(params)} sampling parameters for {len(listed)} prompts; give one, or one a prompt"
            )
        adapters = [lora] * len(listed) if lora is None or isinstance(lora, str) else list(lora)
        if len(adapters) != len(listed):
            raise ValueError(f"{len(adapters)} adapters for {len(listed)} prompts; give one, or one per prompt")
        requests = []
        for prompt, wanted, adapter in zip(listed, params, adapters, strict=True):
            requests.append(self._frontend.prepare(prompt, wanted, str(self._requests), lora=adapter))
            self._requests += 1
        collected = {request.request_id: _Collected(request.params) for request in requests}
        try:
            for request in requests:
                self._core.add(request)
            with GenerationProgress(sum(r.params.n for r in requests), show=use_tqdm) as progress:
                while self._core.has_work():
                    for output in self._core.step():
                        collected[output.request_id].take(output)
                        progress.advance(len(output.token_ids), output.finished)
        except BaseException:
            self._abandon([request.request_id for request in requests])
            raise
        return [
            collected[request.request_id].result(prompt if isinstance(prompt, str) else None, request.prompt)
            for prompt, request in zip(listed, requests, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        lora: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[GenerateResult]:
        """Answers to one conversation or several, through the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        texts = [
            self.tokenizer.render_chat(
                c,  # type: ignore[arg-type]
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            for c in conversations
        ]
        # The template writes its own special tokens.
        prompts = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return self.generate(prompts, params, lora=lora, use_tqdm=use_tqdm)

    def stats(self) -> EngineStats:
        return self._core.stats()

    def check(self) -> None:
        """Prove that nothing leaked; raises when the books don't balance."""
        self._core.check()

    def close(self) -> None:
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _abandon(self, request_ids: Sequence[str]) -> None:
        """Leave the engine usable after an interrupt: abort, and let the steps in flight end."""
        if self._core.dead is not None:
            # Nothing comes back any more, so sequences of lost steps would be waited for in vain.
            self._core.fail_all(self._core.dead)
            return
        for request_id in request_ids:
            self._core.abort(request_id)
        try:
            while self._core.has_work():
                self._core.step()
        except EngineDead:
            return


class _Collected:
    """The increments of one request put together."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._deltas: list[list[RequestOutput]] = [[] for _ in range(params.n)]

    def take(self, output: RequestOutput) -> None:
        self._deltas[output.index].append(output)

    def result(self, prompt: str | None, prompt_ids: tuple[int, ...]) -> GenerateResult:
        first = self._deltas[0]
        wants_prompt = self._params.prompt_logprobs is not None
        return GenerateResult(
            prompt=prompt,
            prompt_token_ids=prompt_ids,
            outputs=tuple(self._output(index, deltas) for index, deltas in enumerate(self._deltas)),
            cached_tokens=first[-1].cached_tokens,
            prompt_logprobs=tuple(p for d in first for p in d.prompt_logprobs) if wants_prompt else None,
        )

    def _output(self, index: int, deltas: list[RequestOutput]) -> CompletionOutput:
        last = deltas[-1]
        wants = self._params.logprobs is not None
        return CompletionOutput(
            index=index,
            text="".join(delta.text for delta in deltas),
            token_ids=tuple(token for delta in deltas for token in delta.token_ids),
            logprobs=tuple(entry for delta in deltas for entry in delta.logprobs) if wants else None,
            finish_reason=last.finish_reason or "error",
            stop_reason=last.stop_reason,
            error=last.error,
        )


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
