"""Accounts of replicas, as a gateway and a simulator keep them: no socket, no clock."""

import pytest
from accounts_kit import accounts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.account import ReplicaStats
from shoal.policy.leases import LeaseError
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision, RouteRequest


def decision(name: str) -> Decision:
    return Decision(name, 0, 0.0, 0.0, "test")


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "progress", "release"]), st.integers(0, 5), st.sampled_from(list(Outcome))),
    max_size=80,
)


@settings(max_examples=80, deadline=None)
@given(STEPS, st.booleans())
def test_leases_are_conserved(steps: list[tuple[str, int, Outcome]], streams: bool) -> None:
    accounts, live, now = accounts_of(3), [], 0.0
    for action, which, outcome in steps:
        now += 0.1
        if action == "take":
            name = f"r{which % 3}"
            live.append(accounts.take(decision(name), RouteRequest("x", "m", 100), streams=streams, now=now))
        elif live and action == "progress":
            live[which % len(live)].progress(now)
        elif live:
            live.pop(which % len(live)).release(outcome, now)
        accounts.states(now)
        accounts.ledger.check()
        assert sum(r.state.inflight for r in accounts.replicas) == len(live) == accounts.ledger.live()
        for replica in accounts.replicas:
            state = replica.state
            own = [lease for lease in live if lease.holder is replica]
            assert 0 <= state.decoding <= state.inflight == len(own)
            assert state.pending_tokens == pytest.approx(sum(x.uncached for x in own if not x.decoding))
    for lease in live:
        lease.release(Outcome.OK, now)
    assert all((r.state.inflight, r.state.decoding, r.state.pending_tokens) == (0, 0, 0) for r in accounts.replicas)


def test_a_lease_ends_once() -> None:
    accounts = accounts_of(1)
    lease = accounts.take(decision("r0"), RouteRequest("x", "m", 10), streams=True, now=0.0)
    lease.release(Outcome.OK, 1.0)
    with pytest.raises(LeaseError, match="twice"):
        lease.release(Outcome.OK, 1.0)


def test_an_estimate_that_was_too_long_is_no_broken_promise() -> None:
    replica = accounts_of(1).get("r0")
    assert not replica.on_hit(120, 90, 90)
    assert replica.state.trust == 1.0
    assert [replica.on_hit(90, 0, 90) for _ in range(7)] == [False] * 6 + [True]


def test_gauges_show_others_and_restarts() -> None:
    replica = accounts_of(1).get("r0")
    assert not replica.on_stats(ReplicaStats(running=3, waiting=2, generated_tokens=100, kv_usage=0.5), 1.0)
    assert replica.state.foreign == 5
    assert replica.drift == 5
    assert replica.on_stats(ReplicaStats(running=0, waiting=0, generated_tokens=7), 2.0)
    assert replica.state.foreign == 0


def test_a_fleet_drains_at_the_rate_of_those_that_serve() -> None:
    accounts = accounts_of(3)
    alone = accounts.get("r0").state.prefill_rate
    accounts.get("r1").state.healthy = False
    accounts.get("r2").state.draining = True
    assert accounts.drain_rate() == alone
    assert accounts.predicted_tpot("another") is None
