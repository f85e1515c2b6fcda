"""Accounts of replicas r0, r1, … of one pool."""

from shoal.policy.account import ReplicaAccount
from shoal.policy.breaker import BreakerConfig
from shoal.policy.replicas import ReplicaAccounts
from shoal.policy.routing.contracts import ReplicaState


def accounts_of(count: int) -> ReplicaAccounts[ReplicaAccount]:
    accounts = ReplicaAccounts[ReplicaAccount]()
    for i in range(count):
        state = ReplicaState(f"r{i}", frozenset({"m"}))
        accounts.insert(ReplicaAccount(state, BreakerConfig(), accounts.peers("default", "m"), 0.0))
    return accounts
