"""The edge of the engine: whatever gets past it can be computed."""

import itertools
from collections.abc import Sequence

import msgspec

from shoal.engine.errors import InvalidParameter, InvalidRequest
from shoal.engine.kv_transfer import KvTransferParams
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.defaults import SamplingDefaults
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.params import SamplingParams
from shoal.engine.sampling.validate import resolve_bad_words, resolve_seed, validate_params, validate_token_ids
from shoal.engine.text.reasoning import ReasoningMode
from shoal.engine.text.tokenizer import Tokenizer
from shoal.specs.model import ModelSpec

PRIORITY_RANGE = (-1000, 1000)
MAX_SALT = 256


class Frontend:
    """Checks and tokenizes requests. Thread-safe: holds no state but a counter."""

    def __init__(
        self,
        model_name: str,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        max_model_len: int,
        guided: GuidedCompiler,
        seed: int | None,
        adapters: Sequence[str] = (),
        sampling_defaults: SamplingDefaults | None = None,
        reasoning: ReasoningMode = "auto",
    ) -> None:
        self.model_name = model_name
        self.spec = spec
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        longest = tokenizer.max_token_bytes
        self.max_prompt_bytes = max_model_len * longest if longest is not None else None
        """Bytes of text (UTF-8) that can fit a context at the most; None: not known."""
        self.adapters = tuple(adapters)
        """Names of the LoRA adapters that requests may choose."""
        self.sampling_defaults = sampling_defaults or SamplingDefaults()
        """For what a request leaves out."""
        self.reasoning = reasoning
        self._guided = guided
        self._seed = seed
        self._unseeded = itertools.count()

    def prepare(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        output: Sequence[int] = (),
        kv_transfer: KvTransferParams | None = None,
        lora: str | None = None,
    ) -> EngineRequest:
        """Return a request that the engine can compute. Raises InvalidRequest: field, value, what is accepted.

        Long prompts and grammars take a while: a server calls this outside its event loop.

        `output` are tokens that another replica has given already, to be gone on from.
        """
        ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)
        low, high = PRIORITY_RANGE
        if not low <= priority <= high:
            raise InvalidRequest("priority", priority, f"an integer from {low} to {high}")
        if cache_salt is not None and not 1 <= len(cache_salt) <= MAX_SALT:
            raise InvalidRequest("cache_salt", f"{len(cache_salt)} characters", f"1 to {MAX_SALT} characters")
        if lora is not None and lora not in self.adapters:
            raise InvalidRequest(
                "lora", lora, "one of " + ", ".join(self.adapters) if self.adapters else "none here"
            )
        try:
            if not ids:
                raise InvalidParameter("prompt", prompt, "at least one token")
            validate_token_ids("prompt", ids, self.spec.vocab)
            params = self._checked(params, len(ids))
            self._check_output(tuple(output), params)
        except InvalidParameter as error:
            raise InvalidRequest(error.field, error.value, error.accepted) from error
        return EngineRequest(
            request_id=request_id,
            prompt=ids,
            params=params,
            priority=priority,
            cache_salt=cache_salt,
            output=tuple(output),
            kv_transfer=kv_transfer,
            lora=lora,
            text_prompt=isinstance(prompt, str),
        )

    def _check_output(self, output: tuple[int, ...], params: SamplingParams) -> None:
        if not output:
            return
        name = "resume_token_ids"
        validate_token_ids(name, output, self.spec.vocab)
        if params.n != 1:
            raise InvalidParameter("n", params.n, f"1 with {name}")
        if params.prompt_logprobs is not None:
            raise InvalidParameter("prompt_logprobs", params.prompt_logprobs, f"none with {name}")
        if params.max_tokens is not None and len(output) >= params.max_tokens:
            raise InvalidParameter(
                name, f"{len(output)} tokens", f"fewer than max_tokens ({params.max_tokens}), which counts them"
            )
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(self.tokenizer.eos_token_ids))
        if (found := next((t for t in output[params.min_tokens :] if t in ends), None)) is not None:
            raise InvalidParameter(name, found, "tokens that don't end the answer")

    def _checked(self, params: SamplingParams, prompt_length: int) -> SamplingParams:
        validate_params(
            params,
            vocab_size=self.spec.vocab,
            max_model_len=self.max_model_len,
            prompt_length=prompt_length,
            guided=self._guided,
        )
        if params.seed is None and self._seed is not None:
            params = msgspec.structs.replace(params, seed=self._seed + next(self._unseeded))
        params = resolve_bad_words(params, lambda word: self.tokenizer.encode(word, add_special_tokens=False))
        return resolve_seed(params)
