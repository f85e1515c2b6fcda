"""The mesh: which rank is where on the axes, and the groups between them.

    rank = ((dp · PP + pp) · CP + cp) · TP + tp        tp fastest: the axis that talks most has neighbours

    dp=1 pp=2 tp=2     stage 0: ranks 0 1      stage 1: ranks 2 3      tp groups {0,1} {2,3}, pp groups {0,2} {1,3}

`ep` adds no ranks: it regroups the dp·cp·tp ranks of a pipeline stage for the expert layers. Counting them
j = (dp · CP + cp) · TP + tp, rank j holds expert group j // cut, of which it holds slice j % cut, where
cut = dp·cp·tp / ep. Tokens travel over `ep` (same slice), slices are summed over `etp` (same expert group).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from shoal.engine.errors import InvalidOption
from shoal.engine.parallel.group import Group, SoloGroup
from shoal.engine.parallel.traffic import TrafficCounters

GroupAxis = Literal["tp", "pp", "cp", "dp", "ep", "etp", "world"]
GROUP_AXES: tuple[GroupAxis, ...] = ("tp", "pp", "cp", "dp", "ep", "etp", "world")
MAX_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a rank is."""

    dp: int
    pp: int
    cp: int
    tp: int


class MeshSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Degrees of the axes. Raises InvalidOption naming the rule that is broken and what would be accepted."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for axis in ("dp", "pp", "cp", "tp", "ep"):
            degree = getattr(self, axis)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise InvalidOption(axis, degree, "a whole number >= 1")
        if self.world > MAX_RANKS:
            raise InvalidOption("tp", self.tp, f"dp·pp·cp·tp of at most {MAX_RANKS} ranks, not {self.world}")
        if self.stage_ranks % self.ep:
            valid = [str(d) for d in range(1, self.stage_ranks + 1) if self.stage_ranks % d == 0]
            raise InvalidOption(
                "ep",
                self.ep,
                f"a divisor of dp·cp·tp = {self.stage_ranks}, the ranks that it regroups: {', '.join(valid)}",
            )

    @classmethod
    def of(cls, *, tp: int = 1, pp: int = 1, dp: int = 1, cp: int = 1, ep: int = 1) -> MeshSpec:
        """As a user writes it: `ep` alone means as many data-parallel lanes."""
        if ep > 1 and dp == cp == tp == 1:
            dp = ep
        return cls(dp=dp, pp=pp, cp=cp, tp=tp, ep=ep)

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage, over all lanes."""
        return self.dp * self.cp * self.tp

    @property
    def expert_cut(self) -> int:
        """Ranks that each expert is cut over. Without `ep`, experts are cut like dense layers, over `tp`."""
        return self.tp if self.ep == 1 else self.stage_ranks // self.ep

    @property
    def lock_step(self) -> bool:
        """Whether lanes meet in the collectives of expert layers, so that an idle one has to join every step."""
        return self.dp > 1 and self.ep > 1

    def coordinates(self, rank: int) -> Coordinates:
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} of {self.world}")
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        dp, pp = divmod(rest, self.pp)
        return Coordinates(dp=dp, pp=pp, cp=cp, tp=tp)

    def rank(self, at: Coordinates) -> int:
        return ((at.dp * self.pp + at.pp) * self.cp + at.cp) * self.tp + at.tp

    def members(self, axis: GroupAxis, rank: int) -> tuple[int, ...]:
        """The ranks of `rank`'s group on an axis, by index within the group."""
        at = self.coordinates(rank)
        match axis:
            case "world":
                return tuple(range(self.world))
            case "ep" | "etp":
                return self._expert_members(axis, at)
            case "tp":
                return tuple(self.rank(Coordinates(at.dp, at.pp, at.cp, i)) for i in range(self.tp))
            case "cp":
                return tuple(self.rank(Coordinates(at.dp, at.pp, i, at.tp)) for i in range(self.cp))
            case "pp":
                return tuple(self.rank(Coordinates(at.dp, i, at.cp, at.tp)) for i in range(self.pp))
            case "dp":
                return tuple(self.rank(Coordinates(i, at.pp, at.cp, at.tp)) for i in range(self.dp))

    def _expert_members(self, axis: Literal["ep", "etp"], at: Coordinates) -> tuple[int, ...]:
        if self.ep == 1:
            return self.members("tp", self.rank(at)) if axis == "etp" else (self.rank(at),)
        cut = self.expert_cut
        expert_group, part = divmod((at.dp * self.cp + at.cp) * self.tp + at.tp, cut)
        if axis == "ep":
            return tuple(self._of_stage(at.pp, group * cut + part) for group in range(self.ep))
        return tuple(self._of_stage(at.pp, expert_group * cut + other) for other in range(cut))

    def _of_stage(self, pp: int, place: int) -> int:
        rest, tp = divmod(place, self.tp)
        dp, cp = divmod(rest, self.cp)
        return self.rank(Coordinates(dp=dp, pp=pp, cp=cp, tp=tp))

    def groups(self, axis: GroupAxis) -> tuple[tuple[int, ...], ...]:
        """All groups of an axis, each once, in order of their first rank."""
        return tuple(dict.fromkeys(self.members(axis, rank) for rank in range(self.world)))

    def samples(self, rank: int) -> bool:
        """Whether this rank samples for its lane: last stage, first of tp and cp."""
        at = self.coordinates(rank)
        return at.pp == self.pp - 1 and at.cp == 0 and at.tp == 0

    def describe(self, rank: int) -> str:
        """For messages: `rank 1 (tp 1 of 2)`."""
        at = self.coordinates(rank)
        places = [
            f"{axis} {getattr(at, axis)} of {getattr(self, axis)}"
            for axis in ("dp", "pp", "cp", "tp")
            if getattr(self, axis) > 1
        ]
        return f"rank {rank}" + (f" ({', '.join(places)})" if places else "")


class Mesh:
    """One rank's view: its coordinates, and a Group an axis. The only owner of groups; close it when done."""

    def __init__(
        self,
        spec: MeshSpec,
        rank: int,
        connect: Callable[[GroupAxis, tuple[int, ...]], Group] | None = None,
        traffic: TrafficCounters | None = None,
    ) -> None:
        """`connect` makes the group of an axis with more than one rank, when it is first asked for. The groups of
        two axes with the same members are still two: their messages don't mix and are counted apart.
        """
        self.spec = spec
        self.rank = rank
        self.at = spec.coordinates(rank)
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
        members = self.spec.members(axis, self.rank)
        if len(members) == 1:
            return SoloGroup(axis, self.rank)
        if self._connect is None:
            raise ValueError(f"axis {axis} has {len(members)} ranks and nobody to connect them")
        return self._connect(axis, members)

    @classmethod
    def single(cls) -> Mesh:
        """One rank alone."""
        return cls(MeshSpec(), 0)

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
    def dp(self) -> Group:
        return self.group("dp")

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
        return self.at.pp == self.spec.pp - 1

    @property
    def samples(self) -> bool:
        return self.spec.samples(self.rank)

    @property
    def waited(self) -> float:
        """Seconds that this rank has spent waiting for others so far."""
        return sum(group.waited for group in self._groups.values())

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
