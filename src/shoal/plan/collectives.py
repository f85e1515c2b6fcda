"""Time, messages and bytes of the collectives that parallel layers need.

α is the seconds of an empty message, B the bytes a second of one device's link in one direction, n the ranks and
S the bytes of the whole message. Ring, gather and point-to-point forms are the usual α–β ones; tree and one-shot
as NCCL and custom all-reduce kernels do them. A collective of one rank costs nothing.
"""

import math
from dataclasses import dataclass
from typing import Literal

from shoal.specs.errors import SpecError

AllReduce = Literal["ring", "tree", "one_shot", "best"]


def _check(ranks: int, size: float, bandwidth: float) -> None:
    if ranks < 1:
        raise SpecError("collective.ranks", ranks, "1 or more")
    if size < 0:
        raise SpecError("collective.bytes", size, "0 or more")
    if not bandwidth > 0:
        raise SpecError("collective.bandwidth", bandwidth, "more than 0 bytes a second")


def ring_all_reduce(ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds: 2(n−1)α + 2(n−1)/n·S/B."""
    _check(ranks, size, bandwidth)
    return 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * size / bandwidth


def tree_all_reduce(ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds: 2⌈log₂n⌉α + 2·S/B."""
    _check(ranks, size, bandwidth)
    return 0.0 if ranks == 1 else 2 * math.ceil(math.log2(ranks)) * latency + 2 * size / bandwidth


def one_shot_all_reduce(ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds: α + (n−1)·S/B. Every rank reads everyone's message: fewest waits, most bytes."""
    _check(ranks, size, bandwidth)
    return 0.0 if ranks == 1 else latency + (ranks - 1) * size / bandwidth


def all_reduce(ranks: int, size: float, latency: float, bandwidth: float, how: AllReduce = "best") -> float:
    """Seconds of an all-reduce of `size` bytes; `best` is the quickest of the three, as libraries choose."""
    ring = ring_all_reduce(ranks, size, latency, bandwidth)
    if how == "ring":
        return ring
    tree = tree_all_reduce(ranks, size, latency, bandwidth)
    if how == "tree":
        return tree
    shot = one_shot_all_reduce(ranks, size, latency, bandwidth)
    return shot if how == "one_shot" else min(ring, tree, shot)


def all_gather(ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds: (n−1)α + (n−1)/n·S/B, `size` being the gathered whole. A reduce-scatter costs the same."""
    _check(ranks, size, bandwidth)
    return (ranks - 1) * latency + (ranks - 1) / ranks * size / bandwidth


def all_to_all(ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds for ranks that hold `size` bytes each, 1/n for every rank: α + (n−1)/n·S/B (pairs in parallel)."""
    _check(ranks, size, bandwidth)
    return 0.0 if ranks == 1 else latency + (ranks - 1) / ranks * size / bandwidth


def point_to_point(size: float, latency: float, bandwidth: float) -> float:
    """Seconds: α + S/B."""
    _check(2, size, bandwidth)
    return latency + size / bandwidth


def hand_off(
    kv_bytes: float, links: int, bandwidth: float, latency: float, layers: int = 1, efficiency: float = 0.8
) -> float:
    """Seconds that moving a prompt's KV to the decoding pool adds to its first token.

    bytes/(links·B·η) + α; sent layer by layer while the prompt is computed (`layers` > 1), up to (L−1)/L of the
    transfer is hidden behind it.
    """
    _check(2, kv_bytes, bandwidth)
    if links < 1:
        raise SpecError("handoff.links", links, "1 or more")
    if not 0 < efficiency <= 1:
        raise SpecError("handoff.efficiency", efficiency, "a share above 0, at most 1")
    return kv_bytes / (links * bandwidth * efficiency) / max(1, layers) + latency


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank sends in one forward pass of a batch."""

    axis: str
    kind: str
    """`all_reduce`, `point_to_point`, `dispatch`, `combine`, `all_gather`, `attention_merge`, `query_gather`,
    `embedding_reduce` or `logits`."""
    messages: int
    """Collectives (or sends) it takes part in."""
    payload: float
    """Bytes of one message: the tensor handed in, before any algorithm's factor."""

    @property
    def bytes(self) -> float:
        return self.messages * self.payload


def step_traffic(
    hidden: int,
    layers: int,
    tokens: int,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    cp: int = 1,
    moe_layers: int = 0,
    top_k: int = 0,
    element_bytes: float = 2.0,
    dispatch_bytes: float | None = None,
    heads: int = 0,
    value_dim: int = 0,
    query_dim: int = 0,
    vocab: int = 0,
    sampled: int = 0,
) -> tuple[Traffic, ...]:
    """The collectives of one forward pass over `tokens` rows, by axis, as a real engine's counters should show.

    tp: two all-reduces a layer, `tokens·hidden` each. pp: one hand-over at each of the p−1 stage boundaries.
    ep: for each layer with experts, `top_k·hidden` a token out (`dispatch_bytes` an element, default as the
    activations) and the same back. cp: one merge a layer of partial outputs with their log-sum-exp; with
    `query_dim`, also the gather of the queries before it, of which a rank has 1/cp. tp with `vocab`: one all-reduce
    of embeddings on the first stage and, for `sampled` rows, a rank's share of the logits from the last. `heads`
    are those of one tensor-parallel rank.
    """
    row = tokens * hidden * element_bytes
    found: list[Traffic] = []
    if tp > 1:
        found.append(Traffic("tp", "all_reduce", 2 * layers, row))
        if vocab:
            found.append(Traffic("tp", "embedding_reduce", 1, row))
            found.append(Traffic("tp", "logits", 1, sampled * vocab / tp * element_bytes))
    if pp > 1:
        found.append(Traffic("pp", "point_to_point", pp - 1, row))
    if ep > 1 and moe_layers and top_k:
        out = element_bytes if dispatch_bytes is None else dispatch_bytes
        found.append(Traffic("ep", "dispatch", moe_layers, tokens * top_k * hidden * out))
        found.append(Traffic("ep", "combine", moe_layers, tokens * top_k * hidden * element_bytes))
    if cp > 1:
        found.append(Traffic("cp", "attention_merge", layers, tokens * heads * (value_dim * element_bytes + 4.0)))
        if query_dim:
            found.append(Traffic("cp", "query_gather", layers, tokens / cp * heads * query_dim * element_bytes))
    return tuple(found)
