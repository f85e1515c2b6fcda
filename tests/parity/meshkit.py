"""Ranks of a mesh as threads of the test, each with its own groups over real shared-memory segments."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from shoal.engine.parallel.group import Group
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shm import ShmGroup
from shoal.engine.parallel.shm_layout import SegmentLayout, anonymous_segment
from shoal.engine.parallel.traffic import TrafficCounters
from shoal.specs.layout import GroupAxis, Layout

T = TypeVar("T")


def run_ranks(spec: Layout, body: Callable[[Mesh], T], deadline: float = 60.0) -> list[T]:
    """What `body` returns on each rank, all running at once; the first exception if one raises."""
    segments: dict[tuple[GroupAxis, tuple[int, ...]], int] = {}
    lock = threading.Lock()
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def rank(index: int) -> None:
        traffic = TrafficCounters()

        def group(axis: GroupAxis, members: tuple[int, ...]) -> Group:
            layout = SegmentLayout(len(members))
            with lock:
                if (axis, members) not in segments:
                    segments[axis, members] = anonymous_segment("test", layout.size)
            place = members.index(index)
            return ShmGroup(
                axis, members, place, segments[axis, members], traffic, deadline / 2, layout=layout, spin=0.0
            )

        try:
            results[index] = body(Mesh(spec, index, group, traffic))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(index,), daemon=True) for index in range(spec.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline)
    for fd in segments.values():
        os.close(fd)
    if errors:
        raise errors[0]
    assert len(results) == spec.world, "a rank hangs"
    return [results[index] for index in range(spec.world)]
