"""From a rank's setup to its mesh: which backend, and every group connected."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shoal.engine.parallel.group import Group
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shm_layout import SegmentLayout
from shoal.engine.parallel.traffic import TrafficCounters
from shoal.specs.layout import GROUP_AXES, GroupAxis, Layout

if TYPE_CHECKING:
    from shoal.engine.ranks.link import Setup

LOCK_STEP_AXES = frozenset({"tp", "cp", "ep", "etp"})
"""Axes whose ranks have equal shares of each layer, so that nobody waits long unless something is wrong."""


def shared_memory_axes(layout: Layout) -> list[tuple[GroupAxis, tuple[int, ...], int]]:
    """(axis, members, bytes of memory) of every group of more than one rank, each once."""
    return [
        (axis, members, SegmentLayout(len(members)).size)
        for axis in GROUP_AXES
        for members in layout.groups(axis)
        if len(members) > 1
    ]


def open_mesh(setup: Setup, watch: memoryview | None) -> Mesh:
    """Connect this rank to its groups. Blocks until the others do so too, where the backend needs that."""
    if setup.layout.world == 1:
        return Mesh.single()
    if setup.collectives != "shm":
        from shoal.engine.parallel.distributed import open_distributed

        return open_distributed(setup)
    traffic = TrafficCounters()

    def group(axis: GroupAxis, members: tuple[int, ...]) -> Group:
        from shoal.engine.parallel.shm import SPIN_SECONDS, ShmGroup

        fd = setup.segments[axis]
        made = ShmGroup(
            axis,
            members,
            members.index(setup.rank),
            fd,
            traffic,
            setup.options.step_timeout,
            spin=0.0 if setup.oversubscribed else SPIN_SECONDS,
            watch=watch,
            lock_step=axis in LOCK_STEP_AXES,
        )
        os.close(fd)
        return made

    return Mesh(setup.layout, setup.rank, group, traffic)
