"""Judgement of replicas by checks, progress and latency, without a clock."""

import math

from accounts_kit import accounts_of

from shoal.policy.health import HealthConfig, HealthJudge
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision, RouteRequest
from shoal.policy.split import SplitPolicy


def test_only_a_share_of_stragglers_is_set_aside() -> None:
    accounts = accounts_of(4)
    judge = HealthJudge(HealthConfig(straggler_share=0.3, straggler_seconds=5.0))
    for i, replica in enumerate(accounts.replicas):
        replica.outcomes[Outcome.OK] = 50
        replica.rates.tpot = 0.01 if i < 2 else 1.0
    judge.judge_stragglers(accounts.replicas, 0.0)
    assert sum(r.state.ejected for r in accounts.replicas) == 0, "half of them are slow: that is no straggler"
    accounts.get("r2").rates.tpot = 0.01
    judge.judge_stragglers(accounts.replicas, 1.0)
    assert [r.state.ejected for r in accounts.replicas] == [False, False, False, True]
    assert judge.judge_stragglers(accounts.replicas, 7.0).returned == ["r3"]
    assert not any(r.state.ejected for r in accounts.replicas)
    accounts.get("r3").rates.tpot = 0.025
    judge.judge_stragglers(accounts.replicas, 8.0)
    assert accounts.get("r3").state.ejected, "the bound to come back is stricter"


def test_a_straggler_whose_open_legs_end_well_returns_when_its_time_is_over() -> None:
    accounts = accounts_of(4)
    judge = HealthJudge(HealthConfig(straggler_seconds=5.0))
    for i, replica in enumerate(accounts.replicas):
        replica.outcomes[Outcome.OK] = 50
        replica.rates.tpot = 1.0 if i == 3 else 0.01
    judge.judge_stragglers(accounts.replicas, 0.0)
    accounts.get("r3").rates.tpot = 0.01
    judge.judge_stragglers(accounts.replicas, 1.0)
    assert accounts.get("r3").state.ejected
    assert judge.judge_stragglers(accounts.replicas, 5.0).returned == ["r3"]


def test_checks_in_a_row_decide() -> None:
    replica = accounts_of(1).get("r0")
    judge = HealthJudge(HealthConfig(failures=2, successes=2))
    assert [judge.on_check(replica, passed) for passed in (False, True, False, False)] == [None, None, None, False]
    replica.state.healthy = False
    assert [judge.on_check(replica, passed) for passed in (True, False, True, True)] == [None, None, None, True]
    judge.forget("r0")
    assert judge.on_check(replica, True) is None


def test_a_hang_is_silence_beyond_the_predicted_first_token() -> None:
    accounts, judge = accounts_of(1), HealthJudge(HealthConfig(hang_seconds=30.0))
    replica = accounts.get("r0")
    seconds = 8000 / replica.rates.prefill_rate

    def hangs(now: float) -> bool:
        return judge.hangs(replica, accounts.ledger.leases("r0"), now)

    def take(now: float, *, streams: bool) -> None:
        accounts.take(Decision("r0", 0, 0.0, 0.0, ""), RouteRequest("x", "m", 8000), streams=streams, now=now)

    assert not hangs(1000.0)
    take(1000.0, streams=False)
    assert not hangs(2000.0), "without a stream nothing can be seen to come"
    take(2000.0, streams=True)
    # The prompt of the leg without a stream counts as computed only when the states are read.
    due = 2000.0 + 2 * seconds + 30.0
    assert not hangs(due - 0.1)
    assert hangs(due + 0.1)
    judge.on_hang(replica, due + 0.1)
    assert not replica.breaker.allows(due + 0.1)
    assert not hangs(due + 0.2)


def test_whose_prompt_is_computed_elsewhere_is_awaited() -> None:
    """A decode replica whose only legs waited for prefills and hand-offs was taken for one that hangs."""
    accounts, judge, split = accounts_of(1), HealthJudge(HealthConfig(hang_seconds=30.0)), SplitPolicy()
    replica = accounts.get("r0")
    lease = accounts.take(Decision("r0", 0, 0.0, 0.0, ""), RouteRequest("x", "m", 1), streams=True, now=0.0)
    lease.quiet_until = math.inf
    assert not judge.hangs(replica, [lease], 100.0)
    lease.quiet_until = split.quiet_until(True, 100.0)
    assert not judge.hangs(replica, [lease], 185.0), "an engine has a minute to fetch KV"
    assert judge.hangs(replica, [lease], 195.0)
    lease.quiet_until = split.quiet_until(False, 100.0)
    assert judge.hangs(replica, [lease], 135.0)
