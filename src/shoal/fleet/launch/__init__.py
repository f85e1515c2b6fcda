"""Processes of replicas: started so that none outlives the fleet, their output kept within bounds."""

from shoal.fleet.launch.log import ReplicaLog
from shoal.fleet.launch.ports import free_port_pair
from shoal.fleet.launch.process import Command, ReplicaProcess

__all__ = ["Command", "ReplicaLog", "ReplicaProcess", "free_port_pair"]
