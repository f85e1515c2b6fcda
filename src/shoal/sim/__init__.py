"""A fleet in virtual time: the objects of `policy/` that the real fleet runs, over simulated replicas."""

from shoal.sim.faults import Fault, FaultRates
from shoal.sim.fleet import ReplicaSpec, SimulatedFleet
from shoal.sim.timing import LinearSeconds, StepSeconds, StepWork
from shoal.sim.world import Simulated, SimulationOptions, simulate

__all__ = [
    "Fault",
    "FaultRates",
    "LinearSeconds",
    "ReplicaSpec",
    "Simulated",
    "SimulatedFleet",
    "SimulationOptions",
    "StepSeconds",
    "StepWork",
    "simulate",
]
