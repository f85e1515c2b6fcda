"""How far the uncertainty of step times moves the figures: the same requests with quicker and slower steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.sim.figures import Figures, widened
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.hardware import PlannedSeconds
from shoal.sim.timing import FittedSeconds
from shoal.workload.load import Load

PILOT_SESSIONS = 1000
"""Sessions that are simulated for it: how figures move is told by fewer requests than what they are."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """A load, or its beginning."""

    load: Load
    whole: bool


def pilot(load: Load) -> Pilot:
    """The part of a load that tells how figures move."""
    if len(load.sessions) <= PILOT_SESSIONS:
        return Pilot(load, whole=True)
    # What a session waits for stands before it, so that a beginning is complete.
    return Pilot(replace(load, sessions=load.sessions[:PILOT_SESSIONS]), whole=False)


def spread_of(fleet: SimulatedFleet) -> float | None:
    """The widest interval of a step's time among the replicas, upper end over mean; None: it is not known."""
    spreads = [spec.step.spread for spec in fleet.replicas if isinstance(spec.step, PlannedSeconds | FittedSeconds)]
    return max(spreads, default=None)


def hurried(fleet: SimulatedFleet, end: int) -> SimulatedFleet:
    """The fleet with all steps at one end of their interval: -1 the quickest, 1 the slowest."""
    specs = tuple(
        replace(spec, step=spec.step.scaled(spec.step.spread**end))
        if isinstance(spec.step, PlannedSeconds | FittedSeconds)
        else spec
        for spec in fleet.replicas
    )
    return replace(fleet, replicas=specs)


@dataclass(frozen=True, slots=True)
class Moves:
    """How the figures of a pilot move with the times of steps."""

    middle: Figures | None
    """With steps as they are; None: the pilot is the whole load, so that these are the figures themselves."""
    ends: tuple[Figures, Figures]
    """With the quickest steps, and with the slowest."""

    def widen(self, base: Figures) -> Figures:
        """The figures of the whole load, with intervals that hold these moves too."""
        return widened(base, self.middle or base, self.ends)


def moves(fleet: SimulatedFleet, whole: bool, run: Callable[[SimulatedFleet], Figures]) -> Moves | None:
    """Simulate the pilot at both ends of the step times' interval; None: nobody knows how sure they are.

    Args:
        whole: the pilot is the whole load.
        run: simulates the pilot on a fleet.
    """
    if spread_of(fleet) is None:
        return None
    return Moves(None if whole else run(fleet), (run(hurried(fleet, -1)), run(hurried(fleet, 1))))
