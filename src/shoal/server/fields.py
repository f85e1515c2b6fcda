"""Types of request fields that several endpoints share, with the ranges that do not depend on the model."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.engine.kv_transfer import KvTransferParams

JsonObject = dict[str, Any]
"""A user's own JSON (a schema, template arguments): passed on, never interpreted here."""

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_CHOICES = 128
MAX_LOGPROBS = 20
"""Top log-probabilities a token, as OpenAI's API allows."""
MAX_STOPS = 16
INT64 = 2**63


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Usage so far in every chunk, not only in the last."""
    include_obfuscation: bool | None = None
    """Accepted and ignored: no padding is ever added."""


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    name: str | None = None
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object, or one that follows `schema` (llama.cpp's and others' form of `json_schema`)."""

    schema: JsonObject | None = None


class JsonSchemaResponseFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema, given in `json_schema` or (llama.cpp's form) in `schema`."""

    json_schema: JsonSchemaFormat | None = None
    schema: JsonObject | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaResponseFormat


class StructuredOutputs(msgspec.Struct, frozen=True):
    """A constraint on the output: exactly one of them."""

    json: JsonObject | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GenerationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `/v1/chat/completions` and `/v1/completions` have in common.

    Every field may be null, which means its default. Ranges that depend on the model or on other fields are
    checked by `parameters.sampling_params`.
    """

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-INT64, le=INT64 - 1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Beyond OpenAI's, with vLLM's names.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    """No other token can be chosen, the end of the sequence included."""
    bad_words: list[Annotated[str, Meta(min_length=1)]] | None = None
    """Words that the output never has."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """Only the last so many tokens of the prompt are used; -1: as many as fit beside `max_tokens`."""
    return_tokens_as_token_ids: bool | None = None
    """Log-probabilities name tokens `token_id:17`, since texts of tokens are ambiguous."""
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    """llama.cpp's name of `guided_grammar`."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Prefixes are reused only among requests with the same salt."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """Lower is served first."""
    return_token_ids: bool | None = None
    resume_token_ids: Annotated[list[TokenId], Meta(max_length=2**20)] | None = None
    """Output that another replica has given already for this very request: the answer goes on after it, with the
    draws of its own positions. `max_tokens` and the usage count it, the answer's text doesn't repeat it."""
    kv_transfer_params: KvTransferParams | None = None
    """The prompt is computed here and decoded elsewhere, or the other way round."""
    # OpenAI's own that change nothing here: accepted so that clients work unchanged.
    user: str | None = None
    metadata: JsonObject | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: JsonObject | None = None
