"""What a caller may ask of the sampler. Validated at the edge, immutable after, free of torch."""

from typing import Any, Literal

import msgspec

GuidedKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]


class GuidedParams(msgspec.Struct, frozen=True):
    """A constraint on the output; exactly one kind."""

    kind: GuidedKind
    value: str = ""
    """A JSON schema, a regex, a JSON list of choices, or a grammar in Lark's or llama.cpp's notation."""
    strict: bool = False
    """Of a JSON schema: refuse keywords that cannot be enforced. Without it, they are given up."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token. Field names and defaults follow the OpenAI and vLLM conventions."""

    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most likely; 0 or -1 = all."""
    top_p: float = 1.0
    """0: greedy."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    """No other token can be chosen, the end of the sequence included. None: all."""
    bad_words: tuple[str, ...] = ()
    """Words that the output never has: at a text's beginning or after a space, as the tokenizer cuts them."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """`bad_words` as token ids; worked out at the edge (`resolve_bad_words`)."""
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = 16
    """None: as many as the context allows."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none. 0: the sampled token's. k: and the k most likely."""
    prompt_logprobs: int | None = None
    guided: GuidedParams | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        # People write stop="\n" or stop=["a", "b"]; a plain string must not become a sequence of characters.
        stop: Any = self.stop
        if stop is None or isinstance(stop, str | list):
            strings = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
            msgspec.structs.force_setattr(self, "stop", strings)
        for name in ("allowed_token_ids", "bad_words"):
            if isinstance(given := getattr(self, name), list):
                msgspec.structs.force_setattr(self, name, tuple(given))
        ids: Any = self.stop_token_ids
        if ids is None or isinstance(ids, list):
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(ids or ()))
