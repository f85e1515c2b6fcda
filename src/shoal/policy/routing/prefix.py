"""Who probably holds a prefix: an index of our own decisions, which works with any engine.

Whatever a replica was given it holds for a while. Bounded twice: blocks per replica (least recently used first) and
seconds. What it predicts is checked against what the engine reports (`trust`).
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from shoal.policy.routing.contracts import Need, RouteRequest

PREFILL_EXTERNALITY = 2.0
"""Seconds that others lose by a second of a prompt's computing.

It delays whoever waits or decodes there, and takes KV from prefixes that others would have found. A router that
counts a request's own delay only moves conversations for a moment's gain, and all pay for computing them twice.
Chosen with a model of conversations on four replicas at 40 to 90 % load: from 0 to 2 hit rate and tail latency
improved, beyond 2 neither did.
"""


class Sharing:
    """How many different prompts go on from a block.

    A prefix that many share (a system prompt) is worth computing on every replica: whoever makes the copy pays
    once, all that come after profit. A conversation's history is its own, however often it is sent again: from each
    of its blocks only one goes on, and at most the end of the last turn.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parent: OrderedDict[bytes, bytes] = OrderedDict()
        self._children: dict[bytes, int] = {}

    def add(self, blocks: Sequence[bytes], tail: bytes) -> None:
        """A prompt was seen."""
        parents, before = self._parent, b""
        for block in (*blocks, tail) if tail else blocks:
            if block in parents:
                parents.move_to_end(block)
            else:
                parents[block] = before
                self._children[before] = self._children.get(before, 0) + 1
            before = block
        while len(parents) > self._limit:
            parent = parents.popitem(last=False)[1]
            left = self._children[parent] - 1
            if left:
                self._children[parent] = left
            else:
                del self._children[parent]

    def charged(self, blocks: Sequence[bytes], block_tokens: float) -> Sequence[float]:
        """What the tokens from the i-th block on are charged, for i from 0 to all; empty if nothing is shared.

        What is the prompt's own costs it and those it delays, `1 + PREFILL_EXTERNALITY` times. What n share costs
        once, divided by √n: not by n, for they don't all come here, and a burst would copy its prefixes everywhere
        at once.
        """
        sharers, total, shared = 1, 0.0, False
        sums = [0.0]
        for block in reversed(blocks):
            # Of two that go on from a block, one is the end of an earlier turn.
            sharers = max(sharers, self._children.get(block, 0) - 1)
            shared = shared or sharers > 1
            total += block_tokens * (1 + PREFILL_EXTERNALITY) if sharers == 1 else block_tokens / math.sqrt(sharers)
            sums.append(total)
        sums.reverse()
        return sums if shared else ()

    def __len__(self) -> int:
        return len(self._parent)


class ApproximateIndex:
    """Block hash → replicas, from `chosen` calls."""

    needs = frozenset[Need]({"blocks"})
    events = None

    def __init__(self, blocks_per_replica: int = 32_768, ttl_seconds: float = 600.0) -> None:
        if blocks_per_replica < 1:
            raise ValueError(f"blocks_per_replica is {blocks_per_replica}; it must be at least 1")
        self._limit = blocks_per_replica
        self._ttl = ttl_seconds
        self._held: dict[str, OrderedDict[bytes, float]] = {}
        self._sharing = Sharing(blocks_per_replica)

    def hits(self, request: RouteRequest, now: float, within: float = math.inf) -> Mapping[str, int]:
        """Tokens of the longest chain of blocks from the first on that each replica holds.

        `within`: only what it was given in so many last seconds.
        """
        found: dict[str, int] = {}
        oldest = now - min(self._ttl, within)
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

    def charged(self, request: RouteRequest) -> Sequence[float]:
        """See `RouteRequest.charged`."""
        return self._sharing.charged(request.blocks, request.block_tokens)

    def chosen(self, request: RouteRequest, replica: str, now: float) -> None:
        self._sharing.add(request.blocks, request.tail)
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

    def knows(self, replica: str) -> bool:
        """Never: it remembers decisions."""
        return False

    def forget(self, replica: str) -> None:
        """It restarted, was reset, or left."""
        self._held.pop(replica, None)

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())
