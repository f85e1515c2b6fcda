"""Shared-memory collectives against what they mean, for sizes around the piece, and uneven shares."""

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_kit import make_groups, run

from shoal.engine.parallel.group import CollectiveTimeout
from shoal.engine.parallel.shm import ShmGroup
from shoal.engine.parallel.shm_layout import LINE, PAGE, SegmentLayout
from shoal.engine.parallel.shm_native import backend

pytestmark = pytest.mark.skipif(backend().library is None, reason=f"no compiled library: {backend().detail}")
sizes = pytest.mark.parametrize("size", [2, 3, 4])


def random(index: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    if dtype == torch.int64:
        return torch.randint(-(2**60), 2**60, shape, generator=generator)
    return torch.randn(*shape, generator=generator).to(dtype)


@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_all_reduce_is_the_sum_in_rank_order_with_the_same_bits_everywhere(
    size: int, dtype: torch.dtype, count: int
) -> None:
    groups = make_groups(size)
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    expected = random(0, count, dtype=dtype).to(wide)
    for index in range(1, size):
        expected = expected + random(index, count, dtype=dtype).to(wide)
    for got in run(groups, lambda g: g.all_reduce(random(g.index, count, dtype=dtype))):
        assert torch.equal(got, expected.to(dtype))


@sizes
def test_all_reduce_keeps_nan_and_infinity_and_shape(size: int) -> None:
    def body(group: ShmGroup) -> torch.Tensor:
        tensor = torch.ones(2, 3, dtype=torch.bfloat16)
        if group.index == 1:
            tensor[0, 0], tensor[0, 1], tensor[1, 2] = float("nan"), float("inf"), 3e38
        return group.all_reduce(tensor.t()).t()

    for got in run(make_groups(size), body):
        assert got.shape == (2, 3)
        assert got[0, 0].isnan()
        assert got[0, 1] == float("inf")
        assert got[1, 0] == size


@sizes
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("width", [1, 50])
def test_all_gather_of_uneven_shares(size: int, dim: int, width: int) -> None:
    extents = [3, 0, 7, 1][:size]

    def share(index: int) -> torch.Tensor:
        shape = (extents[index], width) if dim == 0 else (width, extents[index])
        return random(index, *shape)

    expected = torch.cat([share(index) for index in range(size)], dim)
    for got in run(make_groups(size), lambda g: g.all_gather(share(g.index), dim, extents)):
        assert torch.equal(got, expected)


@sizes
def test_all_gather_refuses_sizes_that_are_not_its_own(size: int) -> None:
    group = make_groups(size)[0]
    with pytest.raises(ValueError, match="sizes"):
        group.all_gather(torch.zeros(2), 0, [1] * size)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@sizes
def test_all_to_all_delivers_every_row_to_its_destination(size: int, data: st.DataObject) -> None:
    n = size
    rows = data.draw(st.lists(st.lists(st.integers(0, 40), min_size=n, max_size=n), min_size=n, max_size=n))

    def piece(source: int, target: int) -> torch.Tensor:
        return random(source * n + target, rows[source][target], 3, dtype=torch.bfloat16)

    groups = make_groups(size)
    for index, got in enumerate(run(groups, lambda g: g.all_to_all([piece(g.index, t) for t in range(n)]))):
        assert len(got) == n
        for source in range(n):
            assert torch.equal(got[source], piece(source, index))
    sent = [v for v in groups[0]._traffic.snapshot() if v.operation == "all_to_all"]
    assert [(v.messages, v.bytes) for v in sent] == [(1, sum(rows[0]) * 6)]
    assert sent[0].remote_bytes == (sum(rows[0]) - rows[0][0]) * 6


@sizes
def test_sends_arrive_in_order_and_run_ahead_of_the_receiver(size: int) -> None:
    groups = make_groups(size, depth=4)
    last = size - 1
    for number in range(4):  # four pieces fit the ring, so nobody needs to be receiving
        groups[0].send(torch.full((8,), float(number)), last)
    for number in range(4):
        assert torch.equal(groups[last].recv((8,), torch.float32, 0), torch.full((8,), float(number)))


@sizes
def test_a_tensor_larger_than_the_ring_goes_round_it_while_others_cross(size: int) -> None:
    n = size

    def body(group: ShmGroup) -> torch.Tensor:
        # Around the circle, even indices first: what a pipeline with a return path would do.
        right, left = (group.index + 1) % n, (group.index - 1) % n
        if group.index == 0:
            group.send(random(group.index, 3000), right)
            return group.recv((3000,), torch.float32, left)
        got = group.recv((3000,), torch.float32, left)
        group.send(random(group.index, 3000), right)
        return got

    for index, got in enumerate(run(make_groups(size), body)):
        assert torch.equal(got, random((index - 1) % n, 3000))


@sizes
def test_many_operations_of_all_sorts_do_not_disturb_one_another(size: int) -> None:
    n = size

    def body(group: ShmGroup) -> list[float]:
        seen = []
        for step in range(60):
            seen.append(float(group.all_reduce(torch.full((step,), 1.0 + group.index)).sum()))
            group.barrier()
            parts = group.all_to_all([torch.full((step % 3, 1), float(group.index)) for _ in range(n)])
            seen.append(float(torch.cat(parts).sum()))
        return seen

    expected = []
    for step in range(60):
        expected += [step * n * (n + 1) / 2, step % 3 * n * (n - 1) / 2]
    assert run(make_groups(size), body) == [expected] * n


@sizes
def test_a_rank_that_does_not_come_is_named(size: int) -> None:
    groups = make_groups(size, timeout=0.2)

    def body(group: ShmGroup) -> str:
        if group.index == 1:
            return ""
        with pytest.raises(CollectiveTimeout) as caught:
            group.all_reduce(torch.ones(4))
        return f"{caught.value.missing} {caught.value}"

    for index, message in enumerate(run(groups, body)):
        if index != 1:
            assert message == "11 all_reduce over tp waited 0.2 s for rank 11"
            assert groups[index].waited >= 0.2


@sizes
def test_a_sender_without_a_receiver_and_a_receiver_without_a_sender_time_out(size: int) -> None:
    groups = make_groups(size, timeout=0.2)
    with pytest.raises(CollectiveTimeout, match=r"send over tp waited 0.2 s for rank 11"):
        groups[0].send(torch.zeros(1000), 1)
    with pytest.raises(CollectiveTimeout, match=r"recv over tp waited 0.2 s for rank 10"):
        groups[1].recv((2000,), torch.float32, 0)


@sizes
def test_stamps_wrap_around(size: int) -> None:
    groups = make_groups(size)
    for group in groups:  # as after almost 2^32 rounds
        group._live.round = 2**32 - 3
        ctypes.c_uint32.from_buffer(group._base, PAGE + group.index * LINE).value = 2**32 - 3
    run(groups, lambda g: [g.barrier() for _ in range(8)])


def test_what_cannot_be_summed_is_refused() -> None:
    group = make_groups(2)[0]
    with pytest.raises(TypeError, match=r"torch.float64; accepted: torch.float32, torch.bfloat16, torch.int64"):
        group.all_reduce(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="index 0; this is 0 of 2"):
        group.send(torch.zeros(1), 0)


@pytest.mark.parametrize(("ranks", "slot", "depth"), [(2, 256, 2), (5, 4096, 1), (64, 131072, 4)])
def test_both_sides_compute_the_same_layout(ranks: int, slot: int, depth: int) -> None:
    library = backend().library
    assert library is not None
    assert library.shoal_segment_bytes(ranks, slot, depth) == SegmentLayout(ranks, slot, depth).size
