"""A request as the scheduler knows it: what was asked, where it stands, what comes out."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from shoal.policy.batching.config import SchedulerConfig
from shoal.policy.batching.plan import TokenLogprobs
from shoal.policy.batching.prefix import Extras, Sliceable, make_extras

FinishReason = Literal["stop", "length", "abort", "error"]


class Tokens(Sliceable, Protocol):
    """The tokens of a sequence: ids, or only how many there are."""

    def append(self, token: int, /) -> None: ...


class Asked(Protocol):
    """What the scheduler reads of a request: `Request`, or one whose tokens are only counted (`counted`)."""

    @property
    def id(self) -> int: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def guided(self) -> bool: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival(self) -> float | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def lora(self) -> str | None: ...
    @property
    def hand_off(self) -> bool: ...
    @property
    def prompt_logprobs(self) -> bool: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def output_length(self) -> int:
        """Output tokens given already."""
        ...

    def known(self) -> Tokens:
        """Return its tokens, prompt and output, as a sequence of the caller's own."""
        ...

    def first_block(self, size: int) -> Hashable:
        """Return what names the content of the first `size` tokens."""
        ...


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks of the scheduler. Token ids are validated against the vocabulary before this."""

    id: int
    """Unique among live requests; how a plan, a result and an output name it."""
    prompt: tuple[int, ...]
    max_tokens: int | None = None
    """Output tokens at most. None: as many as the context allows."""
    min_tokens: int = 0
    """Output tokens before an end-of-sequence or stop token may end it."""
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    """Every end-of-sequence id of the model."""
    ignore_eos: bool = False
    """End-of-sequence ids don't end it; ids that `stop_token_ids` names still do."""
    guided: bool = False
    """A grammar restricts its output. Before `min_tokens`, an end-of-sequence id is then sampled only where the
    grammar admits nothing else, so it ends the output."""
    priority: int = 0
    """Lower is served earlier (vLLM's convention)."""
    arrival: float | None = None
    """Seconds, on the clock of `now`. None: when it is added."""
    cache_salt: str | None = None
    """Only requests with the same salt share cached prefixes."""
    lora: str | None = None
    output: tuple[int, ...] = ()
    """Output that another replica has given already: the request goes on after it. `max_tokens` and `min_tokens`
    count it, as they did there."""
    hand_off: bool = False
    """Once it has ended well, the full blocks of its prompt are held for another replica."""
    prompt_logprobs: bool = False
    """Every prompt row has to be computed, so cached rows don't help until they are delivered."""

    @property
    def prompt_length(self) -> int:
        return len(self.prompt)

    @property
    def output_length(self) -> int:
        return len(self.output)

    def known(self) -> Tokens:
        """See `Asked.known`."""
        return [*self.prompt, *self.output]

    def first_block(self, size: int) -> Hashable:
        """See `Asked.first_block`."""
        return self.cache_salt, self.lora, self.prompt[:size]


class RequestRefused(ValueError):
    """The request can't be served by this replica, whatever the load."""


class RequestTooLong(RequestRefused):
    """The prompt needs more than the model's context or the replica's KV memory holds."""


def length_limit(request: Asked, config: SchedulerConfig) -> int:
    """Tokens at which a request ends, prompt and output. Raises RequestRefused if it can't even begin."""
    length, limit = request.prompt_length, config.max_model_len
    if not length:
        raise RequestRefused("prompt has no tokens; at least 1 is needed")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestRefused(f"max_tokens is {request.max_tokens}; it must be at least 1")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise RequestRefused(f"min_tokens is {request.min_tokens}; max_tokens allows {request.max_tokens} at most")
    if length + 1 > limit:
        raise RequestTooLong(
            f"prompt has {length} tokens; with one output token that is more than max_model_len {limit}: "
            f"at most {limit - 1} are accepted"
        )
    if length > config.kv_capacity:
        raise RequestTooLong(
            f"prompt has {length} tokens and needs {-(-length // config.block_size)} KV blocks of "
            f"{config.block_size} tokens; the replica has {config.num_blocks - 1}: "
            f"at most {config.kv_capacity} tokens are accepted"
        )
    # The last token of a sequence is never computed, so it needs no place in the KV memory.
    limit = min(limit, config.kv_capacity + 1)
    limit = limit if request.max_tokens is None else min(limit, length + request.max_tokens)
    if length + request.output_length >= limit:
        raise RequestRefused(
            f"{request.output_length} output tokens are given already; "
            f"at most {limit - length - 1} leave one to come"
        )
    return limit


class Times(msgspec.Struct, frozen=True):
    """When things happened to a request, in seconds on the clock of `now`. None: not yet."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """News of one request."""

    request_id: int
    tokens: tuple[int, ...] = ()
    """New tokens, in order, with the one that ended it."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One a token of `tokens`, if the request asked."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """The next ones, in order, each exactly once: the very first is for prompt token 1."""
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The token that ended it, if the reason is a token."""
    error: str | None = None
    constraint_failed: bool = False
    """With `error`: the request's own constraints (a grammar, token lists) are the reason, not the engine."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was reused when the request was first scheduled."""
    preemptions: int
    times: Times


Rank = tuple[int, int, float, int]
"""Order of service: (0 = waited too long, priority, arrival, order of adding); lower first, all distinct."""


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request on its way. Owned by the scheduler; block tables are changed by `BlockTables` only.

    tokens     prompt ........ | output ..............
               0               prompt_length        length
    KV         | committed blocks | one being filled |
               0                                  computed   (advances when scheduled)
    """

    request: Asked
    id: int
    order: int
    arrival: float
    tokens: Tokens
    prompt_length: int
    limit: int
    """Length at which it ends, whatever it samples."""
    extras: Extras
    rank: Rank
    progressed: float
    """When it arrived or last got a token; waiting is measured from here."""

    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    sent_blocks: int = 0
    """How many of `blocks` the ranks know; 0 means that the next plan resets the sequence."""
    hashes: list[bytes] = field(default_factory=list)
    committed: int = 0
    """Leading blocks that are full and computed: never written again, so they may be shared."""
    awaits: bytes | None = None
    """A block that someone else is computing now and that this waiting sequence would reuse."""
    drafts: tuple[int, ...] = ()
    in_flight: bool = False
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    prompt_rows: int = 0
    """Prompt log-probabilities delivered so far."""
    preemptions: int = 0
    admission: int = 0
    """Number of its last admission, of all requests'."""
    first_scheduled: float | None = None
    first_token: float | None = None

    @classmethod
    def start(cls, request: Asked, order: int, limit: int, now: float) -> "SequenceState":
        arrival = now if request.arrival is None else request.arrival
        return cls(
            request=request,
            id=request.id,
            order=order,
            arrival=arrival,
            tokens=request.known(),
            prompt_length=request.prompt_length,
            limit=limit,
            extras=make_extras(request.lora, request.cache_salt),
            rank=(1, request.priority, arrival, order),
            progressed=arrival,
        )

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def reusable(self) -> int:
        """Leading tokens whose rows nobody needs to see again; prompt log-probabilities need theirs once."""
        if not self.request.prompt_logprobs or self.prompt_rows >= self.prompt_length - 1:
            return self.length
        return self.prompt_rows

    def age(self) -> None:
        """From now on it ranks before every request that did not wait too long, whatever their priority."""
        self.rank = (0, 0, self.arrival, self.order)

    @property
    def aged(self) -> bool:
        return self.rank[0] == 0

    def accept(self, token: int) -> FinishReason | None:
        """Append an output token; says whether, and why, it was the last."""
        request = self.request
        may_stop = self.length - self.prompt_length >= request.min_tokens
        self.tokens.append(token)
        at_eos = not request.ignore_eos and token in request.eos_token_ids
        if (may_stop and (at_eos or token in request.stop_token_ids)) or (at_eos and request.guided):
            return "stop"
        return "length" if self.length >= self.limit else None

    def output(
        self,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[TokenLogprobs, ...] = (),
        error: str | None = None,
        stop_token: int | None = None,
        constraint_failed: bool = False,
    ) -> Output:
        return Output(
            request_id=self.id,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=self.finish_reason,
            stop_token=stop_token,
            error=error,
            constraint_failed=constraint_failed,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens,
            preemptions=self.preemptions,
            times=Times(self.arrival, self.first_scheduled, self.first_token),
        )
