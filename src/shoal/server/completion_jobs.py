"""From the body of `/v1/completions` to one request of the engine per prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.engine.frontend import Frontend
from shoal.engine.outputs import RequestOutput
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.params import SamplingParams
from shoal.http.errors import bad_value
from shoal.server.generation import prepare
from shoal.server.parameters import guided_params, sampling_params
from shoal.server.prompts import encode_prompt, truncated
from shoal.server.protocol import CompletionRequest

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this endpoint."""
MAX_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """One prompt and what the engine is asked for it."""

    request: EngineRequest
    prompt: tuple[int, ...]
    """All of it: `request` may lack its last token (see `_score_full_context`)."""
    text: str | None
    """The prompt as the client wrote it; None where it sent token ids, or all is not used."""

    def of_prompt(self, output: RequestOutput) -> RequestOutput:
        """Return the engine's output in terms of the whole prompt."""
        if len(self.prompt) == len(self.request.prompt):
            return output
        scores = (*output.prompt_logprobs, *output.logprobs)
        return msgspec.structs.replace(output, prompt_tokens=len(self.prompt), prompt_logprobs=scores)


def is_one(prompt: "str | list[str | int | list[int]]") -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], int) or len(prompt) == 1


def prompts_of(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts one by one; `ApiError` 400 for a list of mixed kinds."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        words = {str: "strings", int: "token ids", list: "lists of token ids"}
        given = " and ".join(sorted(words[kind] for kind in kinds))
        raise bad_value("prompt", given, "a list holds strings, or token ids, or lists of token ids")
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if len(prompt) > MAX_PROMPTS:
        raise bad_value("prompt", f"{len(prompt)} prompts", f"expected at most {MAX_PROMPTS}")
    return [item for item in prompt if not isinstance(item, int)]


def prepare_jobs(frontend: Frontend, body: CompletionRequest, request_id: str) -> list[CompletionJob]:
    """Return one checked job per prompt; `ApiError` 400 names the field.

    Best called off the event loop for long prompts and constraints.
    """
    prompts = prompts_of(body)
    echoed = body.logprobs if body.echo and body.logprobs is not None else None
    wanted = [k for k in (body.prompt_logprobs, echoed) if k is not None]
    params = sampling_params(
        body,
        # Log-probabilities of an echoed prompt come from a pass over it, which always samples once.
        max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else max(body.max_tokens, 1),
        logprobs=body.logprobs,
        prompt_logprobs=max(wanted) if wanted else None,
        guided=guided_params(body),
        defaults=frontend.sampling_defaults,
    )
    jobs = []
    for place, prompt in enumerate(prompts):
        tokens = _tokens(frontend, body, prompt, params)
        asked, prefix = params, tokens
        if body.max_tokens == 0 and len(tokens) == frontend.max_model_len:
            asked, prefix = _score_full_context(params, tokens)
        name = request_id if len(prompts) == 1 else f"{request_id}-{place}"
        request = prepare(frontend, body, prefix, asked, name, text_prompt=isinstance(prompt, str))
        text = prompt if isinstance(prompt, str) and body.truncate_prompt_tokens is None else None
        jobs.append(CompletionJob(request, tuple(tokens), text))
    return jobs


def _tokens(
    frontend: Frontend, body: CompletionRequest, prompt: str | list[int], params: SamplingParams
) -> Sequence[int]:
    cut, limit = body.truncate_prompt_tokens, frontend.max_model_len
    if isinstance(prompt, str):
        prompt = encode_prompt(
            frontend.tokenizer,
            prompt,
            add_special_tokens=body.add_special_tokens is not False,
            field="prompt",
            # One more fits where nothing is generated.
            limit=None if cut is not None else limit + 1 if body.max_tokens == 0 else limit,
        )
    return truncated(prompt, cut, limit - max(params.max_tokens or 1, params.min_tokens))


def _score_full_context(params: SamplingParams, prompt: Sequence[int]) -> tuple[SamplingParams, Sequence[int]]:
    """Score a prompt that fills the whole context, after which the engine could not generate a token.

    Its last token is the one generated: nothing else is allowed, and its log-probability is that of the model.
    """
    top = params.prompt_logprobs
    forced = SamplingParams(
        temperature=0,
        n=params.n,
        max_tokens=1,
        logprobs=top,
        prompt_logprobs=top,
        allowed_token_ids=(prompt[-1],),
        ignore_eos=True,
    )
    return forced, prompt[:-1]
