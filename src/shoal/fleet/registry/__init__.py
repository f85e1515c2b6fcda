"""What is known of each replica; the only writer of `ReplicaState`."""

from shoal.fleet.registry.contracts import EngineAdapter, RawEvents, ReplicaHandle, Role
from shoal.fleet.registry.registry import Registry
from shoal.fleet.registry.replica import Replica

__all__ = ["EngineAdapter", "RawEvents", "Registry", "Replica", "ReplicaHandle", "Role"]
