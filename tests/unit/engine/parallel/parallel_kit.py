"""Ranks as threads of the test: collectives let go of the GIL, and a segment cannot tell threads from processes."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from shoal.engine.parallel.shm import ShmGroup
from shoal.engine.parallel.shm_layout import SegmentLayout, anonymous_segment
from shoal.engine.parallel.traffic import TrafficCounters

T = TypeVar("T")


def make_groups(
    size: int, slot_bytes: int = 256, depth: int = 2, timeout: float = 30.0, axis: str = "tp"
) -> list[ShmGroup]:
    layout = SegmentLayout(size, slot_bytes, depth)
    fd = anonymous_segment("test", layout.size)
    ranks = range(10, 10 + size)
    try:
        return [
            ShmGroup(axis, ranks, index, fd, TrafficCounters(), timeout, layout=layout, spin=0.0)
            for index in range(size)
        ]
    finally:
        os.close(fd)


def run(groups: Sequence[ShmGroup], body: Callable[[ShmGroup], T], deadline: float = 60.0) -> list[T]:
    """What `body` returns on each rank, all running at once; the first exception if one raises."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def rank(group: ShmGroup) -> None:
        try:
            results[group.index] = body(group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(groups))]
