"""Shards cover everything once, and no other contiguous partition is better."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.errors import InvalidOption
from shoal.engine.parallel.shard import HeadShard, shard_heads, split


@settings(max_examples=200)
@given(n=st.integers(0, 300), parts=st.integers(1, 40))
def test_split_covers_all_in_order_and_evenly(n: int, parts: int) -> None:
    ranges = split(n, parts)
    assert len(ranges) == parts
    assert [item for r in ranges for item in r] == list(range(n))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@settings(max_examples=200)
@given(kv_heads=st.integers(1, 16), group=st.integers(1, 9), data=st.data())
def test_every_query_head_is_dealt_once_beside_its_kv_head(kv_heads: int, group: int, data: st.DataObject) -> None:
    q_heads = kv_heads * group
    parts = data.draw(st.integers(1, q_heads))
    shards = shard_heads(q_heads, kv_heads, parts)
    assert len(shards) == parts
    assert [h for s in shards for h in s.q] == list(range(q_heads))
    for shard in shards:
        assert len(shard.q) % len(shard.kv) == 0
        for local, head in enumerate(shard.q):
            # What the rank's attention computes locally must be the model's own pairing.
            assert shard.kv[local // shard.group] == head // group
    assert {h for s in shards for h in s.kv} == set(range(kv_heads))
    if parts <= kv_heads:
        assert sum(len(s.kv) for s in shards) == kv_heads


@pytest.mark.parametrize(
    ("q", "kv", "parts", "expected"),
    [
        (9, 3, 2, [(range(6), range(2)), (range(6, 9), range(2, 3))]),
        (4, 1, 2, [(range(2), range(1)), (range(2, 4), range(1))]),
        (4, 1, 3, [(range(2), range(1)), (range(2, 3), range(1)), (range(3, 4), range(1))]),
        (
            8,
            2,
            3,
            [(range(2), range(1)), (range(2, 4), range(1)), (range(4, 8), range(1, 2))],
        ),
    ],
)
def test_known_deals(q: int, kv: int, parts: int, expected: list[tuple[range, range]]) -> None:
    assert list(shard_heads(q, kv, parts)) == [HeadShard(a, b) for a, b in expected]


def test_more_ranks_than_query_heads_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"tp=5 .* at most 4") as caught:
        shard_heads(4, 1, 5)
    assert caught.value.field == "tp"
