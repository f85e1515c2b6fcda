"""Who has failed, by what the board shows: pure, with a clock of the test's."""

import os
from collections.abc import Iterator

import pytest

from shoal.engine.parallel.shm_layout import anonymous_segment
from shoal.engine.ranks.heartbeat import BeatBoard, Lateness, Wait

LOCK_STEP = 1 << 31


@pytest.fixture
def board() -> Iterator[BeatBoard]:
    fd = anonymous_segment("test", BeatBoard.size(3))
    board = BeatBoard(fd, 3)
    os.close(fd)
    yield board
    board.close()


def test_a_line_is_its_ranks_own(board: BeatBoard) -> None:
    board.beat(1)
    board.beat(1)
    word = board.watch_word(2)
    word[:] = ((5 << 32) | LOCK_STEP | (1 + 1)).to_bytes(8, "little")
    assert [board.beats(rank) for rank in range(3)] == [0, 2, 0]
    assert [board.wait(rank) for rank in range(3)] == [None, None, Wait(5, 1, True)]
    word[:] = ((6 << 32) | (0 + 1)).to_bytes(8, "little")
    assert board.wait(2) == Wait(6, 0, False)
    word[:] = bytes(8)
    assert board.wait(2) is None


def test_silence_is_counted_from_the_last_change() -> None:
    lateness = Lateness(2, 0.0)
    for now in range(1, 8):
        lateness.observe(0, now, None, float(now))
        lateness.observe(1, min(now, 3), None, float(now))
    assert lateness.silent(5.0, 7.0) is None
    assert lateness.silent(4.0, 7.0) == (1, 4.0)
    lateness.forgive(7.0)
    assert lateness.silent(4.0, 10.0) is None


def waiting(waits: dict[int, Wait | None], seconds: float, ranks: int = 3) -> tuple[int, float] | None:
    lateness = Lateness(ranks, 0.0)
    for rank in range(ranks):
        lateness.observe(rank, 1, waits.get(rank), 0.0)
    return lateness.late(4.0, seconds)


def test_the_rank_that_others_wait_for_is_late() -> None:
    assert waiting({0: Wait(1, 1, True), 2: Wait(9, 1, True)}, 4.0) == (1, 4.0)
    assert waiting({0: Wait(1, 1, True)}, 3.9) is None


def test_one_that_waits_itself_is_not_to_blame() -> None:
    # 0 waits for 1 in lock-step, 1 waits for 2: the late one is 2, if it moves in lock-step with 1.
    assert waiting({0: Wait(1, 1, True), 1: Wait(1, 2, True)}, 5.0) == (2, 5.0)
    # If 2 is the pipeline stage before, it may compute as long as a step takes.
    assert waiting({0: Wait(1, 1, True), 1: Wait(1, 2, False)}, 5.0) is None


def test_a_new_wait_starts_anew() -> None:
    lateness = Lateness(2, 0.0)
    lateness.observe(0, 1, Wait(1, 1, True), 0.0)
    lateness.observe(0, 1, Wait(2, 1, True), 3.0)
    assert lateness.late(4.0, 5.0) is None
    assert lateness.late(4.0, 7.0) == (1, 4.0)


def test_two_that_wait_for_each_other_are_noticed() -> None:
    assert waiting({0: Wait(1, 1, True), 1: Wait(1, 0, True)}, 5.0) is not None
