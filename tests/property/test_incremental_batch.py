"""A batch that was updated in place is the one that would have been built."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.batch import Batch, SequenceRows, build_batch
from shoal.engine.incremental_batch import BatchBuilder

CPU = torch.device("cpu")


@dataclasses.dataclass
class _Live:
    length: int
    blocks: list[int]
    table: object


def _same(one: Batch, other: Batch) -> None:
    for field in dataclasses.fields(Batch):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "block_tables":  # wider by padding at most
            width = min(ours.shape[1], theirs.shape[1])
            assert not ours[:, width:].any()
            assert not theirs[:, width:].any()
            ours, theirs = ours[:, :width], theirs[:, :width]
        if isinstance(ours, torch.Tensor):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), field.name
        else:
            assert ours == theirs, field.name


@given(
    st.sampled_from([1, 3, 16]),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.lists(
        st.sampled_from(["on", "on", "on", "on", "join", "leave", "chunk", "reset", "swap", "drafts"]), max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_any_steps(block_size, lengths, steps, random) -> None:
    builder = BatchBuilder(block_size, CPU, (0, 1))
    fresh = iter(range(1, 10**6))
    live: list[_Live] = [_Live(length, [], object()) for length in lengths]
    for step in ["on", *steps]:
        if step == "join":
            live.insert(random.randrange(len(live) + 1), _Live(random.randrange(40), [], object()))
        elif step == "leave" and len(live) > 1:
            live.pop(random.randrange(len(live)))
        elif step == "reset":
            one = random.choice(live)
            one.blocks, one.table = [], object()
        elif step == "swap":
            random.shuffle(live)
        shares = []
        for index, one in enumerate(live):
            count = random.randrange(2, 6) if index == 0 and step in ("chunk", "drafts") else 1
            while len(one.blocks) * block_size < one.length + count:
                one.blocks.append(next(fresh))
            tokens = [random.randrange(1000) for _ in range(count)]
            wanted = count if step == "drafts" else 1
            shares.append(SequenceRows(tokens, one.length, np.array(one.blocks), wanted, one.table))
            one.length += count
        _same(builder.build(shares), build_batch(shares, block_size, CPU))


def test_steps_of_one_token_move_the_same_memory_on() -> None:
    builder, table = BatchBuilder(4, CPU, (0, 1)), object()
    first = builder.build([SequenceRows([7], 8, [1, 2, 3], 1, table)])
    place = first.tokens.data_ptr()
    second = builder.build([SequenceRows([9], 9, [1, 2, 3], 1, table)])
    assert second.tokens.data_ptr() == place
    assert second.tokens.tolist() == [9]
    assert builder.build([SequenceRows([9], 10, [1, 2, 3], 1, None)]).tokens.data_ptr() != place


def test_a_table_that_is_too_short_is_said_to_be_in_any_step() -> None:
    builder, table = BatchBuilder(4, CPU, (0, 1)), object()
    builder.build([SequenceRows([7], 7, [1, 2], 1, table)])
    with pytest.raises(ValueError, match="blocks for 8 tokens"):
        builder.build([SequenceRows([9], 8, [1, 2], 1, table)])
