"""A request's body, parsed once: what routing, admission and continuation need; the rest is passed on unread.

Fields that only the engine judges stay raw, so that the gateway refuses nothing an engine would accept.
"""

import asyncio
import hashlib
import random
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from shoal.fleet.gateway.apis import ENDPOINTS, Api, Endpoint
from shoal.http.errors import ApiError
from shoal.http.json_limits import UNCHECKED_BYTES, check_structure
from shoal.http.json_words import in_json_terms, malformed
from shoal.policy.batching.prefix import make_extras
from shoal.policy.estimates import TokenEstimator
from shoal.policy.routing.contracts import RouteRequest
from shoal.policy.routing.router import Router

BLOCK_BYTES = 128
"""Of a prompt's JSON that one prefix hash stands for: about 32 tokens of English."""
BLOCK_TOKENS = 32
_MAX_BLOCKS = 2048
_MAX_ID_BYTES = 2**20
"""Of a list of token ids that is decoded and hashed; a longer one is routed by its JSON."""
_MAX_HASHED_BYTES = BLOCK_BYTES * (_MAX_BLOCKS + 1)
_DEFAULT_COMPLETION = 16
"""`max_tokens` of completions in OpenAI's API."""
_SESSION_LIMIT = 256


class Ask(msgspec.Struct, kw_only=True):
    """The fields of all APIs that mean something to a gateway."""

    model: str
    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    documents: Raw = Raw()
    text_2: Raw = Raw()
    items: Raw = Raw()
    system: Raw = Raw()
    instructions: Raw = Raw()
    previous_response_id: Raw = Raw()
    max_output_tokens: int | None = None
    tools: Raw = Raw()
    stream: bool | None = None
    stream_options: Raw = Raw()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    priority: int | None = None
    stop: Raw = Raw()
    logprobs: Raw = Raw()
    prompt_logprobs: Raw = Raw()
    response_format: Raw = Raw()
    structured_outputs: Raw = Raw()
    guided_json: Raw = Raw()
    guided_regex: Raw = Raw()
    guided_choice: Raw = Raw()
    guided_grammar: Raw = Raw()
    grammar: Raw = Raw()
    bad_words: Raw = Raw()
    allowed_token_ids: Raw = Raw()
    truncate_prompt_tokens: Raw = Raw()
    return_token_ids: bool | None = None
    user: Raw = Raw()
    prompt_cache_key: Raw = Raw()
    cache_salt: Raw = Raw()
    resume_token_ids: Raw = Raw()
    kv_transfer_params: Raw = Raw()


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_stream_options = msgspec.json.Decoder(_StreamOptions)
_fields = msgspec.json.Decoder(dict[str, Raw])
_ask = msgspec.json.Decoder(Ask)
_text = msgspec.json.Decoder(str)
_ids = msgspec.json.Decoder(list[Annotated[int, Meta(ge=0, lt=2**31)]])


def given(raw: Raw) -> bool:
    """Whether a raw field is there and not null."""
    return bytes(raw) not in (b"", b"null")


def text_of(raw: Raw) -> str | None:
    """A raw field's string; None for anything else."""
    try:
        return _text.decode(raw) if given(raw) else None
    except msgspec.MsgspecError:
        return None


@dataclass(slots=True)
class Parsed:
    """One request as it came in."""

    api: Api
    body: bytes
    ask: Ask
    tokens: list[int] | None
    """The prompt, where it was sent as token ids."""
    prompt: Raw
    prompt_bytes: int
    streams: bool

    @property
    def endpoint(self) -> Endpoint:
        return self.api.endpoint

    @property
    def guided(self) -> bool:
        ask = self.ask
        fields = (
            *(ask.structured_outputs, ask.guided_json, ask.guided_regex, ask.guided_choice),
            *(ask.guided_grammar, ask.grammar),
        )
        shaped = given(ask.response_format) and b'"text"' not in bytes(ask.response_format)
        return shaped or any(given(field) for field in fields)

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the event with the usage of a stream."""
        options = self.ask.stream_options
        if not given(options):
            return False
        try:
            return _stream_options.decode(options).include_usage is True
        except msgspec.MsgspecError:
            return False

    def draw_seed(self) -> None:
        """Give a sampled request without a seed one of its own: as random as before, and it can be continued."""
        ask = self.ask
        # Whoever says `"seed": null` says it later in the body than we could, and the last one counts.
        if ask.seed is None and ask.temperature != 0 and b'"seed"' not in self.body:
            self.ask = msgspec.structs.replace(ask, seed=random.getrandbits(62))
            self.body = with_fields(self.body, b'"seed":%d,' % (self.ask.seed or 0))

    @property
    def max_tokens(self) -> int | None:
        ask = self.ask
        if self.endpoint == "responses":
            return ask.max_output_tokens
        asked = ask.max_completion_tokens if self.endpoint == "chat" else None
        return ask.max_tokens if asked is None else asked

    @property
    def output_limit(self) -> int | None:
        """`max_tokens`, or the API's default; None: only the model's context limits it."""
        limit = self.max_tokens
        return _DEFAULT_COMPLETION if limit is None and self.endpoint == "completions" else limit


async def parse_off_loop(endpoint: Endpoint, body: bytes) -> Parsed:
    """`parse`, in a thread where the body is large, and refused where its JSON has too many values to decode."""
    if len(body) <= UNCHECKED_BYTES:
        return parse(endpoint, body)
    await asyncio.to_thread(check_structure, body)
    return await asyncio.to_thread(parse, endpoint, body)


def parse(endpoint: Endpoint, body: bytes) -> Parsed:
    """The request; `ApiError` 400 names what is wrong."""
    api = ENDPOINTS[endpoint]
    try:
        ask = _ask.decode(body)
    except msgspec.ValidationError as error:
        what, _, _ = str(error).partition(" - at `")
        field = _field(str(error))
        raise _bad(f"{field}: {in_json_terms(what)}" if field else in_json_terms(what), field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(f"the body is not valid JSON: {malformed(body, str(error))}", None) from None
    except RecursionError:
        raise _bad("the body is nested too deeply", None) from None
    prompt = Raw()
    for name in api.prompts:
        if given(raw := getattr(ask, name)):
            prompt = raw
            break
    size = len(memoryview(prompt))
    if api.chunked and not size:
        field = api.prompts[0]
        raise _bad(f"{field}: it is missing", field)
    if bytes(ask.kv_transfer_params):
        # Replicas trust it: who hands KV to whom is decided here.
        raise _bad("kv_transfer_params: it is not accepted from clients", "kv_transfer_params")
    if ask.max_tokens is not None and ask.max_tokens < 0:
        raise _bad(f"max_tokens: {ask.max_tokens} is not accepted; expected at least 0", "max_tokens")
    tokens = _tokens(prompt) if endpoint == "completions" else None
    return Parsed(api, body, ask, tokens, prompt, size, api.generates and ask.stream is True)


def _bad(message: str, field: str | None) -> ApiError:
    return ApiError(400, message, param=field, code="invalid_value" if field else "invalid_json")


def _field(message: str) -> str | None:
    """The field a msgspec message speaks of: `… - at `$.model`` or `… missing required field `model``."""
    parts = message.split("`")
    named = parts[-2] if len(parts) >= 3 else ""
    return named.removeprefix("$.") or None


def _tokens(prompt: Raw) -> list[int] | None:
    start = bytes(memoryview(prompt)[:16]).lstrip(b"[ \t\r\n")
    if not start[:1].isdigit() or bytes(memoryview(prompt)[:1]) != b"[":
        return None
    if len(memoryview(prompt)) > _MAX_ID_BYTES:
        return None
    try:
        return _ids.decode(prompt)
    except msgspec.MsgspecError:
        return None


def route_request(
    parsed: Parsed,
    request_id: str,
    router: Router,
    estimator: TokenEstimator,
    session: str | None,
    client: str,
    priority: int | None,
    *,
    adapter: bool,
) -> RouteRequest:
    """What the router needs to know of it. `adapter`: its model is a LoRA adapter, which the KV depends on."""
    ask = parsed.ask
    tokens = parsed.tokens
    size = len(tokens) if tokens is not None else estimator.prompt_tokens(ask.model, parsed.prompt_bytes)
    if not parsed.api.computes:
        size = 1
    route = RouteRequest(
        id=request_id,
        model=ask.model,
        prompt_tokens=size,
        max_tokens=estimator.output_tokens(ask.model, parsed.output_limit) * max(1, ask.n or 1)
        if parsed.api.generates
        else 0,
        tokens=tokens,
        session=(session or text_of(ask.prompt_cache_key) or text_of(ask.user) or "")[:_SESSION_LIMIT] or None,
        client=client,
        priority=priority if priority is not None else ask.priority or 0,
        extras=make_extras(ask.model if adapter else None, text_of(ask.cache_salt)),
    )
    if not parsed.api.generates:
        # Its KV is dropped at its end: nobody finds a prefix of it.
        return route
    if "blocks" in router.needs:
        _add_blocks(route, parsed)
    if "text" in router.needs:
        route.text = bytes(memoryview(parsed.prompt)[:_MAX_HASHED_BYTES]).decode("utf-8", "replace")
    return route


def _add_blocks(route: RouteRequest, parsed: Parsed) -> None:
    ask = parsed.ask
    name = ask.model.encode("utf-8", "surrogatepass")
    before = (bytes(raw) for raw in (ask.tools, ask.cache_salt, ask.system, ask.instructions))
    seed = b"\0".join((name, *before))
    if parsed.tokens is not None:
        tokens = parsed.tokens[: BLOCK_TOKENS * (_MAX_BLOCKS + 1)]
        data, step = struct.pack(f"<{len(tokens)}i", *tokens), 4 * BLOCK_TOKENS
        route.block_tokens = float(BLOCK_TOKENS)
    else:
        # Without the closing bracket or quote, which the next turn of a conversation doesn't have there.
        data, step = bytes(memoryview(parsed.prompt)[:-1][:_MAX_HASHED_BYTES]), BLOCK_BYTES
        route.block_tokens = BLOCK_BYTES * route.prompt_tokens / max(1, parsed.prompt_bytes)
    route.blocks, route.tail = prefix_chain(seed, data, step)


def prefix_chain(seed: bytes, data: bytes, step: int) -> tuple[list[bytes], bytes]:
    """A hash for each full `step` bytes of `data`, depending on all before it, at most 2048; and of the rest."""
    blake2b = hashlib.blake2b
    link = blake2b(seed, digest_size=8).digest()
    chain = []
    for at in range(0, min(len(data) - step + 1, step * _MAX_BLOCKS), step):
        link = blake2b(link + data[at : at + step], digest_size=8).digest()
        chain.append(link)
    return chain, blake2b(link + data[len(chain) * step :][:step] + b"tail", digest_size=8).digest()


def with_fields(body: bytes, fields: bytes) -> bytes:
    """The body with more fields in front (`"a":1,`), without serializing it again."""
    brace = body.index(b"{") + 1
    return b"".join((body[:brace], fields, body[brace:]))


def asking_for_usage(parsed: Parsed) -> bytes:
    """The body of a stream whose client doesn't want its usage, so that the engine says it all the same."""
    options = parsed.ask.stream_options
    if not bytes(options):
        return with_fields(parsed.body, b'"stream_options":{"include_usage":true},')
    fields = _fields.decode(parsed.body)
    try:
        asked = _fields.decode(options) if given(options) else {}
    except msgspec.MsgspecError:
        # The engine says what is wrong with it.
        return parsed.body
    asked["include_usage"] = Raw(b"true")
    # Without `include_usage` it had no effect; with it, every event would say what nobody asked for.
    asked.pop("continuous_usage_stats", None)
    fields["stream_options"] = Raw(msgspec.json.encode(asked))
    return msgspec.json.encode(fields)
