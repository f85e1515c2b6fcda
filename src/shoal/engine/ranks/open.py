"""From a rank's setup to its mesh: which backend, and every group connected."""

import os
from datetime import timedelta

from shoal.engine.parallel.group import CollectiveTimeout, Group
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shm_layout import SegmentLayout
from shoal.engine.parallel.traffic import TrafficCounters
from shoal.engine.ranks.link import Setup
from shoal.specs.layout import GROUP_AXES, GroupAxis, Layout

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
        return _open_distributed(setup)
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


def _open_distributed(setup: Setup) -> Mesh:
    """Meet the other ranks and make every group of the mesh. Raises CollectiveTimeout if some don't come."""
    import torch
    import torch.distributed as dist

    from shoal.engine.parallel.distributed import TorchGroup

    timeout = timedelta(seconds=setup.options.step_timeout)
    layout, rank = setup.layout, setup.rank
    device = torch.device(setup.options.device)
    if device.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", rank % max(1, torch.cuda.device_count())))
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
    try:
        host, _, port = (setup.store or "").rpartition(":")
        store = dist.PrefixStore("shoal", dist.TCPStore(host, int(port), is_master=False, timeout=timeout))  # type: ignore[attr-defined]
        dist.init_process_group(setup.collectives, store=store, timeout=timeout, rank=rank, world_size=layout.world)
        traffic = TrafficCounters()
        groups: dict[GroupAxis, Group] = {}
        # Every rank makes every group, in the same order: torch.distributed numbers them as they are made.
        for axis in GROUP_AXES:
            for members in layout.groups(axis):
                if len(members) == 1:
                    continue
                made = dist.new_group(list(members), timeout=timeout)
                if rank in members:
                    groups[axis] = TorchGroup(axis, members, members.index(rank), made, traffic, device)
    except (dist.DistError, RuntimeError) as error:
        what = f"rendezvous ({_first_line(error)})"
        raise CollectiveTimeout("world", what, None, timeout.total_seconds()) from error
    return Mesh(layout, rank, lambda axis, _: groups[axis], traffic)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
