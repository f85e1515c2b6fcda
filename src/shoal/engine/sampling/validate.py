"""The edge's check of sampling parameters: what passes cannot make the sampler fail.

Types are checked too, because a struct built in Python (rather than decoded from JSON) checks none.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, get_args

from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling.bad_words import resolve_bad_words
from shoal.engine.sampling.params import GuidedKind, GuidedParams, SamplingParams
from shoal.engine.sampling.random import resolve_seed

__all__ = ["InvalidParameter", "resolve_bad_words", "resolve_seed", "validate_params"]

MAX_TEMPERATURE = 100.0
"""Beyond it every distribution is uniform to float32."""
REPETITION_PENALTY_RANGE = (0.01, 100.0)
"""Wider penalties can take a float32 logit out of the finite range."""
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 1024
MAX_LOGPROBS = 20
"""As OpenAI's API allows."""
MAX_BIASED_TOKENS = 1024
MAX_BAD_WORDS = 1024
_INT64 = 1 << 63


class GuidedValidator(Protocol):
    def validate(self, guided: GuidedParams) -> None:
        """Raises `InvalidParameter` for a constraint that does not compile."""


def validate_params(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    prompt_length: int | None = None,
    guided: GuidedValidator | None = None,
) -> None:
    """Raises `InvalidParameter` naming the first field out of its range, its value, and what would be accepted.

    `vocab_size` is the width of the logits. With `prompt_length`, prompt and `max_tokens` together must fit
    `max_model_len`. Without `guided`, a constraint is refused: there is nothing to compile it.
    """
    _number("temperature", params.temperature, 0, MAX_TEMPERATURE)
    _integer("top_k", params.top_k, -1, vocab_size, "-1 or 0 (all tokens), or ")
    _number("top_p", params.top_p, 0, 1)
    _number("min_p", params.min_p, 0, 1)
    _number("presence_penalty", params.presence_penalty, -2, 2)
    _number("frequency_penalty", params.frequency_penalty, -2, 2)
    _number("repetition_penalty", params.repetition_penalty, *REPETITION_PENALTY_RANGE)
    _integer("n", params.n, 1, MAX_CHOICES)
    if params.seed is not None:
        _integer("seed", params.seed, -_INT64, _INT64 - 1)
    for name in ("logprobs", "prompt_logprobs"):
        if (value := getattr(params, name)) is not None:
            _integer(name, value, 0, min(MAX_LOGPROBS, vocab_size))
    for name in (
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    ):
        if not isinstance(value := getattr(params, name), bool):
            raise InvalidParameter(name, value, "true or false")
    _lengths(params, max_model_len, prompt_length)
    _stops(params, vocab_size)
    _logit_bias(params.logit_bias, vocab_size)
    _allowed(params, vocab_size)
    _guided(params.guided, guided)


def _lengths(params: SamplingParams, max_model_len: int, prompt_length: int | None) -> None:
    room = max_model_len - (prompt_length or 0)
    if prompt_length is not None and room < 1:
        accepted = f"at most {max_model_len - 1} tokens, so that one can follow"
        raise InvalidParameter("prompt", f"{prompt_length} tokens", accepted)
    limit = room
    if params.max_tokens is not None:
        note = f" (a context of {max_model_len} less a prompt of {prompt_length})" if prompt_length else ""
        _integer("max_tokens", params.max_tokens, 1, room, after=note)
        limit = params.max_tokens
    _integer("min_tokens", params.min_tokens, 0, limit, after=" (max_tokens)" if params.max_tokens else "")


def _stops(params: SamplingParams, vocab_size: int) -> None:
    _strings("stop", params.stop, MAX_STOPS)
    ids = params.stop_token_ids
    if not isinstance(ids, tuple) or len(ids) > MAX_STOP_IDS:
        raise InvalidParameter("stop_token_ids", ids, f"a list of at most {MAX_STOP_IDS} token ids")
    validate_token_ids("stop_token_ids", ids, vocab_size)


def _logit_bias(bias: Any, vocab_size: int) -> None:
    if bias is None:
        return
    if not isinstance(bias, dict) or len(bias) > MAX_BIASED_TOKENS:
        raise InvalidParameter("logit_bias", bias, f"an object of at most {MAX_BIASED_TOKENS} token ids")
    for token, value in bias.items():
        _integer("logit_bias", token, 0, vocab_size - 1, "token ids as keys: ")
        _number(f"logit_bias[{token}]", value, -100, 100)


def _allowed(params: SamplingParams, vocab_size: int) -> None:
    ids = params.allowed_token_ids
    if ids is not None:
        if not isinstance(ids, tuple) or not ids or len(ids) > vocab_size:
            raise InvalidParameter("allowed_token_ids", ids, f"a list of 1 to {vocab_size} token ids")
        validate_token_ids("allowed_token_ids", ids, vocab_size)
    _strings("bad_words", params.bad_words, MAX_BAD_WORDS)


def _strings(field: str, texts: Any, limit: int) -> None:
    if not isinstance(texts, tuple) or len(texts) > limit:
        raise InvalidParameter(field, texts, f"a list of at most {limit} strings")
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
            raise InvalidParameter(field, text, f"strings of 1 to {MAX_STOP_CHARS} characters")


def _guided(constraint: Any, validator: GuidedValidator | None) -> None:
    if constraint is None:
        return
    if not isinstance(constraint, GuidedParams):
        raise InvalidParameter("guided", constraint, "GuidedParams(kind, value)")
    kinds = get_args(GuidedKind)
    if constraint.kind not in kinds:
        raise InvalidParameter("guided.kind", constraint.kind, f"one of {', '.join(kinds)}")
    if not isinstance(constraint.value, str):
        raise InvalidParameter(f"guided.{constraint.kind}", constraint.value, "a string")
    if validator is None:
        raise InvalidParameter("guided", constraint.kind, "nothing: this replica has no guided decoding")
    validator.validate(constraint)


def _integer(field: str, value: Any, low: int, high: int, before: str = "", after: str = "") -> None:
    # bool is an int to Python, but true is no token count.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        shown_low = 1 if before and low == -1 else low
        raise InvalidParameter(field, value, f"{before}an integer from {shown_low} to {high}{after}")


def _number(field: str, value: Any, low: float, high: float) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not low <= value <= high:
        raise InvalidParameter(field, value, f"a number from {low:g} to {high:g}")


def validate_token_ids(field: str, ids: Sequence[Any], vocab_size: int) -> None:
    """Raises `InvalidParameter` for the first id that is no token of the model."""
    for token in ids:
        _integer(field, token, 0, vocab_size - 1, "token ids: ")
