"""One rank's view of its layout: where it is on the axes (`specs/layout`), and the groups it talks to."""

from __future__ import annotations

from collections.abc import Callable

from shoal.engine.parallel.group import Group, SoloGroup
from shoal.engine.parallel.traffic import TrafficCounters
from shoal.specs.layout import GroupAxis, Layout


class Mesh:
    """One rank's view: its coordinates, and a Group an axis. The only owner of groups; close it when done."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        connect: Callable[[GroupAxis, tuple[int, ...]], Group] | None = None,
        traffic: TrafficCounters | None = None,
    ) -> None:
        """`connect` makes the group of an axis with more than one rank, when it is first asked for. The groups of
        two axes with the same members are still two: their messages don't mix and are counted apart.
        """
        self.layout = layout
        self.rank = rank
        self.at = layout.coordinates(rank)
        self.traffic = traffic or TrafficCounters()
        self._connect = connect
        self._groups: dict[GroupAxis, Group] = {}

    def group(self, axis: GroupAxis) -> Group:
        """The group of an axis. Raises ValueError for one that nobody can connect."""
        found = self._groups.get(axis)
        if found is None:
            found = self._groups[axis] = self._open(axis)
        return found

    def _open(self, axis: GroupAxis) -> Group:
        members = self.layout.members(axis, self.rank)
        if len(members) == 1:
            return SoloGroup(axis, self.rank)
        if self._connect is None:
            raise ValueError(f"axis {axis} has {len(members)} ranks and nobody to connect them")
        return self._connect(axis, members)

    @classmethod
    def single(cls) -> Mesh:
        """One rank alone."""
        return cls(Layout(), 0)

    @property
    def tp(self) -> Group:
        return self.group("tp")

    @property
    def pp(self) -> Group:
        """Stages in order: send to `index + 1`, receive from `index - 1`."""
        return self.group("pp")

    @property
    def cp(self) -> Group:
        return self.group("cp")

    @property
    def ep(self) -> Group:
        """Index i holds expert group i."""
        return self.group("ep")

    @property
    def etp(self) -> Group:
        """The ranks that hold slices of the same experts."""
        return self.group("etp")

    @property
    def world(self) -> Group:
        return self.group("world")

    @property
    def first_stage(self) -> bool:
        return self.at.pp == 0

    @property
    def last_stage(self) -> bool:
        return self.at.pp == self.layout.pp - 1

    @property
    def samples(self) -> bool:
        return self.layout.samples(self.rank)

    @property
    def waited(self) -> float:
        """Seconds that this rank has spent waiting for others so far."""
        return sum(group.waited for group in self._groups.values())

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
