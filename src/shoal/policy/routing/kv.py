"""Who holds a prefix for certain: an index kept by the engines' own KV events.

Engines name blocks by hashes of their own, which differ by seed and version. Events carry the blocks' tokens, so
the index names them again by Shoal's chain: a lookup needs only the prompt's tokens, and agrees for every engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.policy.batching.prefix import SEED, PrefixHasher, block_hash
from shoal.policy.routing.contracts import Need, RouteRequest, StoredBlocks
from shoal.policy.routing.prefix import ApproximateIndex


@dataclass(slots=True)
class _Held:
    """What one replica holds."""

    block_size: int = 0
    own: dict[object, bytes] = field(default_factory=dict)
    """The engine's name of a block → ours; in the order of storing."""
    count: dict[bytes, int] = field(default_factory=dict)
    """Ours → how many of the engine's blocks have this content."""
    salts: bool = False
    """Whether its events ever told a cache salt: older engines' don't, and announce salted blocks like others."""


class ExactIndex:
    """Blocks held by replica, from `stored`, `removed` and `cleared`. Idempotent: a replay changes nothing."""

    needs = frozenset[Need]({"blocks", "tokens"})

    def __init__(self, blocks_per_replica: int = 1_000_000) -> None:
        self._limit = blocks_per_replica
        self._held: dict[str, _Held] = {}

    @property
    def events(self) -> "ExactIndex":
        return self

    def stored(self, replica: str, blocks: StoredBlocks) -> bool:
        """A chain of blocks was stored. False: its parent is unknown here, so that nothing could be placed."""
        parent, block_size, extras = blocks.parent, blocks.block_size, blocks.extras
        held = self._held.setdefault(replica, _Held())
        held.block_size = block_size
        held.salts = held.salts or any(tag == "cache_salt" for tag, _ in extras)
        if parent is not None and parent not in held.own:
            return False
        ours = SEED if parent is None else held.own[parent]
        for place, name in enumerate(blocks.hashes):
            chunk = blocks.tokens[place * block_size : (place + 1) * block_size]
            ours = block_hash(ours, chunk, extras if parent is None and place == 0 else ())
            if name in held.own:
                if held.own[name] == ours:
                    continue
                self._drop(held, name)
            held.own[name] = ours
            held.count[ours] = held.count.get(ours, 0) + 1
        while len(held.own) > self._limit:
            self._drop(held, next(iter(held.own)))
        return True

    def removed(self, replica: str, hashes: Sequence[object]) -> None:
        held = self._held.get(replica)
        for name in hashes if held is not None else ():
            assert held is not None
            self._drop(held, name)

    def cleared(self, replica: str) -> None:
        """It holds nothing that was announced before."""
        if replica in self._held:
            before = self._held[replica]
            self._held[replica] = _Held(block_size=before.block_size, salts=before.salts)

    def forget(self, replica: str) -> None:
        """It left, or is another process now."""
        self._held.pop(replica, None)

    @staticmethod
    def _drop(held: _Held, name: object) -> None:
        ours = held.own.pop(name, None)
        if ours is None:
            return
        left = held.count[ours] - 1
        if left:
            held.count[ours] = left
        else:
            del held.count[ours]

    def knows(self, replica: str) -> bool:
        """Whether the replica ever announced anything."""
        return replica in self._held and self._held[replica].block_size > 0

    def hits(self, request: RouteRequest, now: float) -> Mapping[str, int]:
        """Tokens held by each replica whose events tell it; needs `request.tokens`."""
        if request.tokens is None:
            return {}
        salted = any(tag == "cache_salt" for tag, _ in request.extras)
        chains: dict[int, list[bytes]] = {}
        found: dict[str, int] = {}
        for name, held in self._held.items():
            size = held.block_size
            if not size or (salted and not held.salts):
                continue
            chain = chains.get(size)
            if chain is None:
                chain = chains[size] = PrefixHasher(size).hashes(request.tokens, request.extras)
            matched = 0
            for block in chain:
                if block not in held.count:
                    break
                matched += 1
            found[name] = matched * size
        return found

    def charged(self, request: RouteRequest) -> Sequence[float]:
        """Events don't say who shares."""
        return ()

    def chosen(self, request: RouteRequest, replica: str, now: float) -> None:
        """Nothing: the engine will say."""

    def __len__(self) -> int:
        return sum(len(held.own) for held in self._held.values())


class CombinedIndex:
    """Exact where a replica announces and the prompt's tokens are known; else approximate.

    A prompt that was just sent somewhere is announced only once it is computed. So what was decided within the last
    `soon` seconds counts as held even where a replica announces.
    """

    needs = frozenset[Need]({"blocks", "tokens"})

    def __init__(self, exact: ExactIndex, approximate: ApproximateIndex, soon_seconds: float = 2.0) -> None:
        self.exact = exact
        self.approximate = approximate
        self.stored, self.removed = exact.stored, exact.removed
        self._soon_seconds = soon_seconds

    @property
    def events(self) -> "CombinedIndex":
        return self

    def hits(self, request: RouteRequest, now: float) -> Mapping[str, int]:
        found = dict(self.approximate.hits(request, now))
        if request.tokens is None:
            return found
        soon = self.approximate.hits(request, now, self._soon_seconds)
        for name, hit in self.exact.hits(request, now).items():
            found[name] = max(hit, soon.get(name, 0))
        return found

    def charged(self, request: RouteRequest) -> Sequence[float]:
        return self.approximate.charged(request)

    def chosen(self, request: RouteRequest, replica: str, now: float) -> None:
        self.approximate.chosen(request, replica, now)

    def knows(self, replica: str) -> bool:
        """Whether the replica ever announced anything."""
        return self.exact.knows(replica)

    def cleared(self, replica: str) -> None:
        """It says that it holds nothing."""
        self.exact.cleared(replica)
        self.approximate.forget(replica)

    def forget(self, replica: str) -> None:
        for index in (self.exact, self.approximate):
            index.forget(replica)
