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
        parents, children, before = self._parent, self._children, b""
        for block in (*blocks, tail) if tail else blocks:
            if block in parents:
                parents.move_to_end(block)
            else:
                parents[block] = before
                children[before] = children.get(before, 0) + 1
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
        children, sharers, total = self._children, 1, 0.0
        own = share = block_tokens * (1 + PREFILL_EXTERNALITY)
        sums = [0.0]
        for block in reversed(blocks):
            # Of two that go on from a block, one is the end of an earlier turn.
            several = children.get(block, 0) - 1
            if several > sharers:
                sharers = several
                share = block_tokens / math.sqrt(sharers)
            total += own if sharers == 1 else share
            sums.append(total)
        sums.reverse()
        return sums if sharers > 1 else ()

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
        self._roots: dict[bytes, dict[str, None]] = {}
        """First block of a prompt → replicas that may hold it: no other holds anything of such a prompt."""
        self._sharing = Sharing(blocks_per_replica)

    def hits(self, request: RouteRequest, now: float, within: float = math.inf) -> Mapping[str, int]:
        """Tokens of the longest chain of blocks from the first on that each replica holds.

        `within`: only what it was given in so many last seconds.
        """
        found: dict[str, int] = {}
        oldest = now - min(self._ttl, within)
        blocks = request.blocks
        for name in self._roots.get(blocks[0], ()) if blocks else ():
            held = self._held[name]
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
        move = held.move_to_end
        # From the end to the start, so that a chain's tail is evicted before its head.
        for block in reversed(request.blocks):
            held[block] = now
            move(block)
        if request.blocks:
            self._roots.setdefault(request.blocks[0], {})[replica] = None
        while len(held) > self._limit:
            self._drop(replica, held.popitem(last=False)[0])
        oldest = now - self._ttl
        while held:
            block, at = next(iter(held.items()))
            if at >= oldest:
                break
            del held[block]
            self._drop(replica, block)

    def _drop(self, replica: str, block: bytes) -> None:
        """The block is no longer held; as a first block it leads there no more."""
        leads = self._roots.get(block)
        if leads is not None:
            leads.pop(replica, None)
            if not leads:
                del self._roots[block]

    def knows(self, replica: str) -> bool:
        """Never: it remembers decisions."""
        return False

    def forget(self, replica: str) -> None:
        """It restarted, was reset, or left."""
        for block in self._held.pop(replica, ()):
            self._drop(replica, block)

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())
