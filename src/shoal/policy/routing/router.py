"""Filter → score → pick, and the named policies made of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from shoal.policy.routing.contracts import (
    NO_NEEDS,
    Decision,
    EventIndex,
    Filter,
    Index,
    NoReplica,
    Picker,
    Reason,
    ReplicaState,
    RouteRequest,
    Scorer,
)
from shoal.policy.routing.draws import Draws
from shoal.policy.routing.filters import Available, HasSlot, Serves, preferred, why_none
from shoal.policy.routing.kv import CombinedIndex, ExactIndex
from shoal.policy.routing.load import Decode, KvPressure, Overhead, Prefill, Queue, Requests, Uncached
from shoal.policy.routing.pickers import Least, PowerOfTwo, Random, RoundRobin, Softmax
from shoal.policy.routing.prefix import ApproximateIndex
from shoal.policy.routing.session import SessionAffinity
from shoal.policy.routing.text_tree import CacheAware

_MANY = 4
"""Times as many replicas as are scored, from which on not all are even looked at."""
_MIN_TOKENIZED = 64
_MAX_TOKENIZED = 200_000
"""Prompt tokens, estimated: no replica tokenizes more in the time that it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    policy: str = "default"
    """One of `POLICIES`."""
    seed: int = 0
    """Of tie-breaks and sampling. Give every gateway its own: equal ones herd."""
    temperature: float = 0.0
    """Seconds; above 0, policies that take the least sample instead."""
    index_blocks: int = 32_768
    """Blocks remembered a replica by the approximate index at most."""
    index_seconds: float = 600.0
    session_bound: float = 1.25
    """A session's replica may have this many times the mean load."""
    most_scored: int = 64
    """Replicas that the default policy scores for one request at most; of more, those that hold most of its prompt
    and others drawn at random."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"router.policy is {self.policy!r}; expected one of {', '.join(sorted(POLICIES))}")
        if self.most_scored < 2:
            raise ValueError(f"router.most_scored is {self.most_scored}; it must be at least 2")
        if not self.temperature >= 0:
            raise ValueError(f"router.temperature is {self.temperature}; it must be at least 0 seconds")


class Router:
    """Decides where a request goes. Not thread-safe; owns its index and its memory, no clock."""

    def __init__(
        self,
        scorers: Sequence[Scorer],
        picker: Picker,
        index: Index | None = None,
        filters: Sequence[Filter] | None = None,
        name: str = "custom",
        sample: "Sample | None" = None,
    ) -> None:
        self.name = name
        self._sample = sample
        self.index = index
        self._scorers = tuple(scorers)
        self._picker = picker
        self.needs = picker.needs | (index.needs if index is not None else NO_NEEDS)
        """What has to be filled in of a `RouteRequest`."""
        filters = filters if filters is not None else (Serves(), Available(), HasSlot())
        self._able = tuple(one for one in filters if not one.waits)
        self._free = tuple(one for one in filters if one.waits)

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> Decision | NoReplica:
        """The replica for it, or why there is none. A decision counts as taken: the index and ties remember it."""
        if self.index is not None:
            request.hits = self.index.hits(request, now)
            request.charged = self.index.charged(request)
        kept, able = self._candidates(request, replicas, now)
        if not kept:
            return why_none(request, replicas)
        scored = [(self._score(request, r, now), r) for r in kept]
        score, replica, why = self._picker.pick(request, scored, now)
        if self.index is not None:
            self.index.chosen(request, replica.name, now)
        return self._decision(request, replica, score, why, able, now)

    def _candidates(
        self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float
    ) -> tuple[list[ReplicaState], int]:
        """Return those to score, and of how many they are."""
        sample = self._sample
        if sample is not None and len(replicas) > _MANY * sample.size:
            some = sample.of(request, replicas)
            kept = _kept(self._free, request, self._who_could(request, some, now), now)
            # Where nearly all can take it, and none is a fallback, looking at the rest would change nothing.
            if 2 * len(kept) >= len(some) and not kept[0].fallback:
                return kept, len(replicas)
        kept = _kept(self._free, request, self._who_could(request, replicas, now), now)
        able = len(kept)
        if sample is not None and able > sample.size:
            kept = sample.of(request, kept)
        return kept, able

    def _score(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        total = 0.0
        for scorer in self._scorers:
            total += scorer.seconds(request, replica, now)
        return total

    def predict(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> float | None:
        """Seconds to the first token on the best replica that could ever take it; None: nobody could.

        Slots are not looked at: what waits for one waits longer than this.
        """
        able = self._who_could(request, replicas, now)
        if not able:
            return None
        if self.index is not None:
            request.hits = self.index.hits(request, now)
        return min(self._ttft(request, r, now) for r in able)

    def token_source(self, request: RouteRequest, replicas: Sequence[ReplicaState]) -> str | None:
        """Return the replica to ask for the token ids of a prompt's text; None: they would not change a decision.

        They find what a replica announces. Such a replica is asked, for prompts that are long enough to matter.
        """
        index = self.index
        if (
            index is None
            or "tokens" not in index.needs
            or request.tokens is not None
            or not _MIN_TOKENIZED <= request.prompt_tokens <= _MAX_TOKENIZED
            or len(replicas) < 2
        ):
            return None
        for state in replicas:
            if state.serving and request.model in state.models and index.knows(state.name):
                return state.name
        return None

    @property
    def event_index(self) -> EventIndex | None:
        """Where KV events of replicas go; None: they would not change a decision."""
        return self.index.events if self.index is not None else None

    def forget(self, replica: str) -> None:
        """The replica left, or came back as another process with nothing in its cache."""
        self._picker.forget(replica)
        if self.index is not None:
            self.index.forget(replica)

    def _who_could(self, request: RouteRequest, replicas: Sequence[ReplicaState], now: float) -> list[ReplicaState]:
        """Return those that could take it once they have a slot; fallbacks only where nobody else could."""
        able = _kept(self._able, request, replicas, now)
        return preferred(able) if len(able) > 1 else able

    @staticmethod
    def _ttft(request: RouteRequest, replica: ReplicaState, now: float) -> float:
        seconds = 0.0
        for scorer in _TTFT:
            seconds += scorer.seconds(request, replica, now)
        return seconds

    def _decision(
        self, request: RouteRequest, replica: ReplicaState, score: float, why: str, of: int, now: float
    ) -> Decision:
        hit = request.hits.get(replica.name, 0)
        return Decision(
            replica=replica.name,
            predicted_hit=hit,
            predicted_ttft=self._ttft(request, replica, now),
            predicted_delay=score,
            because=Reason(
                self.name,
                why,
                of,
                hit if self.index is not None else None,
                request.prompt_tokens,
                replica.trust,
                tuple((s.name, s.seconds(request, replica, now)) for s in self._scorers),
            ),
        )


class Sample:
    """Some of many replicas to score: half of the room for those that hold most of the prompt, the rest drawn.

    The best of n drawn replicas is on average among the best 1/n of all, and gateways that draw don't herd.
    """

    def __init__(self, size: int, draws: Draws) -> None:
        self.size = size
        self._draws = draws

    def of(self, request: RouteRequest, replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
        """Return `size` of the replicas or fewer, which are more than that."""
        hits = request.hits
        holding = [r for r in replicas if r.name in hits] if hits else []
        if len(holding) > self.size // 2:
            holding = sorted(holding, key=lambda r: -hits[r.name])[: self.size // 2]
        chosen = {r.name: r for r in holding}
        for _ in range(self.size - len(chosen)):
            drawn = replicas[self._draws.below(len(replicas))]
            chosen[drawn.name] = drawn
        return list(chosen.values())


def _kept(
    filters: Sequence[Filter], request: RouteRequest, replicas: Sequence[ReplicaState], now: float
) -> list[ReplicaState]:
    kept = list(replicas)
    for one in filters:
        kept = one.keep(request, kept, now)
    return kept


# What delays a first token does so whatever a policy looks at.
_TTFT: tuple[Scorer, ...] = (Overhead(), Queue(), Uncached(), KvPressure())


def _least(config: RouterConfig, draws: Draws) -> Picker:
    return Softmax(draws, config.temperature) if config.temperature > 0 else Least(draws)


def _approximate(config: RouterConfig) -> ApproximateIndex:
    return ApproximateIndex(config.index_blocks, config.index_seconds)


def _combined(config: RouterConfig) -> CombinedIndex:
    return CombinedIndex(ExactIndex(), _approximate(config))


_Build = Callable[[RouterConfig, Draws], Router]

_BUILDERS: dict[str, _Build] = {
    "round_robin": lambda c, d: Router((), RoundRobin(d), name="round_robin"),
    "random": lambda c, d: Router((), Random(d), name="random"),
    "least_load": lambda c, d: Router((Requests(),), _least(c, d), name="least_load"),
    "power_of_two": lambda c, d: Router((Requests(),), PowerOfTwo(d), name="power_of_two"),
    "session": lambda c, d: Router((Requests(),), SessionAffinity(d, c.session_bound), name="session"),
    "cache_aware": lambda c, d: Router((), CacheAware(d), name="cache_aware"),
    "prefix": lambda c, d: Router((Queue(), Prefill()), _least(c, d), _approximate(c), name="prefix"),
    "kv": lambda c, d: Router((Queue(), Uncached()), _least(c, d), ExactIndex(), name="kv"),
    "default": lambda c, d: Router(
        (Queue(), Prefill(), Decode(), KvPressure()),
        _least(c, d),
        _combined(c),
        name="default",
        sample=Sample(c.most_scored, d),
    ),
}
POLICIES = MappingProxyType(_BUILDERS)
"""Policies by name."""


def build_router(config: RouterConfig | None = None) -> Router:
    """The router of a named policy."""
    config = config or RouterConfig()
    return POLICIES[config.policy](config, Draws(config.seed))
