"""How a dimension and the heads of an attention are split over ranks. Nothing need divide.

split(10, 4)                  0 1 2 | 3 4 5 | 6 7 | 8 9
shard_heads(9, 3, 2)          q 0…5, kv 0 1  |  q 6…8, kv 2        whole KV groups, unevenly
shard_heads(4, 1, 3)          q 0 1, kv 0 | q 2, kv 0 | q 3, kv 0  fewer KV heads than ranks: replicated
"""

from dataclasses import dataclass
from itertools import accumulate

from shoal.engine.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class HeadShard:
    """One rank's share of an attention: contiguous ranges of the model's query and KV heads.

    Query head h of the model reads KV head h // (query heads / KV heads). Within the shard, its query heads are
    assigned to its KV heads in the same proportion, or all read its only one.
    """

    q: range
    kv: range

    @property
    def group(self) -> int:
        """Query heads of this shard that read one of its KV heads."""
        return len(self.q) // len(self.kv)


def split(n: int, parts: int) -> tuple[range, ...]:
    """`n` items in `parts` contiguous ranges whose lengths differ by at most one, the longer ones first.

    Ranges are empty where there are more parts than items. Raises ValueError for less than no item or no part.
    """
    if n < 0 or parts < 1:
        raise ValueError(f"cannot split {n} items into {parts} parts; expected n >= 0 and parts >= 1")
    size, longer = divmod(n, parts)
    ends = list(accumulate(size + (index < longer) for index in range(parts)))
    return tuple(range(start, end) for start, end in zip([0, *ends], ends, strict=False))


def shard_heads(q_heads: int, kv_heads: int, parts: int) -> tuple[HeadShard, ...]:
    """Query and KV heads of `parts` ranks.

    With at least as many KV heads as ranks, whole KV groups are assigned. With fewer, each KV head is replicated on
    the ranks that share its query heads. Raises InvalidOption (field `tp`) when a rank would have no query head.
    """
    if kv_heads < 1 or q_heads % kv_heads:
        raise ValueError(f"{q_heads} query heads over {kv_heads} KV heads; expected a whole multiple")
    if parts > q_heads:
        raise InvalidOption("tp", parts, f"at most {q_heads}, the number of query heads")
    group = q_heads // kv_heads
    if kv_heads >= parts:
        return tuple(HeadShard(range(kv.start * group, kv.stop * group), kv) for kv in split(kv_heads, parts))
    shards: list[HeadShard] = []
    for kv_head, ranks in enumerate(_ranks_of_kv_heads(kv_heads, group, parts)):
        for q in split(group, ranks):
            start = kv_head * group
            shards.append(HeadShard(range(start + q.start, start + q.stop), range(kv_head, kv_head + 1)))
    return tuple(shards)


def _ranks_of_kv_heads(kv_heads: int, group: int, parts: int) -> list[int]:
    """How many ranks share each KV head; none gets more ranks than it has query heads."""
    counts = [len(share) for share in split(parts, kv_heads)]
    # parts <= kv_heads * group, so an even split never exceeds the group: ceil(parts / kv_heads) <= group.
    assert max(counts) <= group
    return counts
