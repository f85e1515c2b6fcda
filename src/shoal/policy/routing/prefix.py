"""Who probably holds a prefix: an index of our own decisions, which works with any engine.

Whatever a replica was given it holds for a while. Bounded twice: blocks a replica (least recently used first) and
seconds. What it predicts is checked against what the engine reports (`trust`).
"""

from collections import OrderedDict
from collections.abc import Mapping

from shoal.policy.routing.contracts import RouteRequest


class ApproximateIndex:
    """Block hash → replicas, from `chosen` calls."""

    def __init__(self, blocks_per_replica: int = 32_768, ttl_seconds: float = 600.0) -> None:
        if blocks_per_replica < 1:
            raise ValueError(f"blocks_per_replica is {blocks_per_replica}; it must be at least 1")
        self._limit = blocks_per_replica
        self._ttl = ttl_seconds
        self._held: dict[str, OrderedDict[bytes, float]] = {}

    def hits(self, request: RouteRequest, now: float) -> Mapping[str, int]:
        """Tokens of the longest chain of blocks from the first on that each replica holds."""
        found: dict[str, int] = {}
        oldest = now - self._ttl
        blocks = request.blocks
        for name, held in self._held.items():
            matched = 0
            for block in blocks:
                at = held.get(block)
                if at is None or at < oldest:
                    break
                matched += 1
            if matched:
                found[name] = min(request.prompt_tokens, int(matched * request.block_tokens))
        return found

    def chosen(self, request: RouteRequest, replica: str, now: float) -> None:
        held = self._held.get(replica)
        if held is None:
            held = self._held[replica] = OrderedDict()
        # From the end to the start, so that a chain's tail is evicted before its head.
        for block in reversed(request.blocks):
            held[block] = now
            held.move_to_end(block)
        while len(held) > self._limit:
            held.popitem(last=False)
        oldest = now - self._ttl
        while held:
            block, at = next(iter(held.items()))
            if at >= oldest:
                break
            del held[block]

    def forget(self, replica: str) -> None:
        """It restarted, was reset, or left."""
        self._held.pop(replica, None)

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())
