"""The block pool: order of eviction, references, events, and checks that do notice."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.batching import (
    AllBlocksCleared,
    BlockPool,
    BlockRemoved,
    BlockStored,
    IntegrityError,
    make_extras,
)


def key(name: int) -> bytes:
    return name.to_bytes(32, "little")


def pool_with(num_blocks: int = 6, **options: bool) -> BlockPool:
    return BlockPool(num_blocks, 2, **options)


def test_null_block_is_never_handed_out() -> None:
    pool = pool_with(4)
    assert pool.total == 3
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="1 blocks wanted, 0 of 3"):
        pool.allocate(1)
    with pytest.raises(IntegrityError):
        pool.release([0])


def test_release_puts_unhashed_first_and_hashed_last_with_tails_before_heads() -> None:
    pool = pool_with(6)
    first, second, third = pool.allocate(3)
    pool.register(first, key(1), None, (1, 2))
    pool.register(second, key(2), key(1), (3, 4))
    pool.release([first, second, third])
    assert pool.available == 5
    assert pool.cached == 2
    # The one without content goes out again first, then the never used, then the tail of the chain, then its head.
    assert pool.allocate(5) == [third, 4, 5, second, first]
    pool.check()


def test_cached_block_is_revived_from_the_middle_of_the_list() -> None:
    pool = pool_with(6)
    blocks = pool.allocate(5)
    for index, block in enumerate(blocks):
        pool.register(block, key(index), None, (1, 2))
    pool.release(blocks)
    middle = pool.lookup(key(2))
    assert middle == blocks[2]
    pool.acquire([middle])
    pool.check()
    assert pool.owned == 1
    assert pool.cached == 4
    assert pool.allocate(4) == [blocks[4], blocks[3], blocks[1], blocks[0]]
    assert pool.lookup(key(2)) == middle
    assert pool.lookup(key(1)) is None


def test_least_recently_used_prefix_is_evicted_first() -> None:
    pool = pool_with(4)
    one, two, three = pool.allocate(3)
    for name, block in ((1, one), (2, two), (3, three)):
        pool.register(block, key(name), None, (1, 2))
    for block in (one, two, three):
        pool.release([block])
    pool.acquire([one])
    pool.release([one])
    assert pool.allocate(1) == [two]


def test_shared_block_is_free_after_its_last_owner() -> None:
    pool = pool_with()
    (block,) = pool.allocate(1)
    pool.register(block, key(1), None, (1, 2))
    pool.acquire([block])
    pool.release([block])
    assert pool.references(block) == 1
    assert pool.owned == 1
    pool.release([block])
    assert pool.owned == 0
    with pytest.raises(IntegrityError, match="no owner"):
        pool.release([block])


def test_same_content_twice_keeps_the_first() -> None:
    pool = pool_with()
    one, two = pool.allocate(2)
    pool.register(one, key(1), None, (1, 2))
    pool.register(two, key(1), None, (1, 2))
    assert pool.lookup(key(1)) == one
    pool.release([one, two])
    assert pool.cached == 1
    pool.check()


def test_registering_what_is_not_owned_or_not_full_is_refused() -> None:
    pool = pool_with()
    (block,) = pool.allocate(1)
    with pytest.raises(IntegrityError, match="1 tokens, not 2"):
        pool.register(block, key(1), None, (1,))
    pool.register(block, key(1), None, (1, 2))
    with pytest.raises(IntegrityError, match="twice"):
        pool.register(block, key(2), None, (1, 2))
    with pytest.raises(IntegrityError, match="without an owner"):
        pool.register(5, key(3), None, (1, 2))


def test_clear_cache_forgets_owned_and_free_alike() -> None:
    pool = pool_with()
    one, two = pool.allocate(2)
    pool.register(one, key(1), None, (1, 2))
    pool.register(two, key(2), key(1), (3, 4))
    pool.release([two])
    pool.clear_cache()
    assert pool.lookup(key(1)) is None
    assert pool.lookup(key(2)) is None
    assert pool.cached == 0
    pool.release([one])
    pool.check()
    assert pool.available == pool.total


def test_events_tell_what_can_be_reused_in_vllms_field_names() -> None:
    pool = pool_with(3, record_events=True)
    extras = make_extras("adapter", "salt")
    one, two = pool.allocate(2)
    pool.register(one, key(1), None, (1, 2), extras=extras)
    pool.register(two, key(2), key(1), (3, 4), extras=extras)
    pool.release([one, two])
    pool.allocate(1)
    pool.clear_cache()
    events = pool.take_events()
    assert events == [
        BlockStored((key(1),), None, (1, 2), 2, lora_name="adapter", extra_keys=(("adapter", "salt"),)),
        BlockStored((key(2),), key(1), (3, 4), 2, lora_name="adapter"),
        BlockRemoved((key(2),)),
        AllBlocksCleared(),
    ]
    assert pool.take_events() == []
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(events[1]))
    assert wire["type"] == "BlockStored"
    assert wire["parent_block_hash"] == key(1)
    assert wire["lora_id"] is None


def test_events_are_not_kept_unless_asked() -> None:
    pool = pool_with()
    (block,) = pool.allocate(1)
    pool.register(block, key(1), None, (1, 2))
    assert pool.take_events() == []


@pytest.mark.parametrize(("blocks", "size", "field"), [(1, 4, "num_blocks"), (4, 0, "block_size")])
def test_sizes_are_checked(blocks: int, size: int, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        BlockPool(blocks, size)


def test_check_notices_each_kind_of_damage() -> None:
    def damaged() -> BlockPool:
        pool = pool_with()
        (block,) = pool.allocate(1)
        pool.register(block, key(1), None, (1, 2))
        pool.check()
        return pool

    pool = damaged()
    pool._references[1] = 0
    with pytest.raises(IntegrityError, match="total"):
        pool.check()
    pool = damaged()
    pool._hashes[1] = None
    with pytest.raises(IntegrityError, match="hash map"):
        pool.check()
    pool = damaged()
    pool._previous[3] = 5
    with pytest.raises(IntegrityError, match="linked wrongly"):
        pool.check()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=80))
def test_pool_agrees_with_a_plain_model(operations: list[tuple[int, int]]) -> None:
    """Against lists and dicts that do the same the slow way: an ordered list of free blocks, a dict of hashes."""
    pool = BlockPool(8, 1)
    free, hashes, held = list(range(1, 8)), {}, []
    for operation, pick in operations:
        if operation == 0 and free:
            block = free.pop(0)
            hashes.pop(block, None)
            assert pool.allocate(1) == [block]
            held.append(block)
        elif operation == 1 and held:
            block = held[pick % len(held)]
            if block not in hashes:
                wanted = key(pick % 5)
                pool.register(block, wanted, None, (pick % 5,))
                if wanted not in hashes.values():
                    hashes[block] = wanted
        elif operation == 2:
            found = pool.lookup(key(pick % 5))
            assert found == next((b for b, h in hashes.items() if h == key(pick % 5)), None)
            if found is not None:
                pool.acquire([found])
                held.append(found)
                if found in free:
                    free.remove(found)
        elif operation == 3 and held:
            block = held.pop(pick % len(held))
            pool.release([block])
            if block not in held:
                free.insert(len(free) if block in hashes else 0, block)
        pool.check()
        assert pool.available == len(free)
        assert pool.cached == sum(block in hashes for block in free)
