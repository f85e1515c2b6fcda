"""The mesh of ranks and the collectives between them."""

from shoal.engine.parallel.group import CollectiveTimeout, Group, SoloGroup
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import HeadShard, shard_heads, split
from shoal.engine.parallel.traffic import TrafficCounters, Volume

__all__ = [
    "CollectiveTimeout",
    "Group",
    "HeadShard",
    "Mesh",
    "SoloGroup",
    "TrafficCounters",
    "Volume",
    "shard_heads",
    "split",
]
