"""When crashed replicas are started again, given up or killed, without a clock."""

import pytest

from shoal.policy.restarts import RestartConfig, RestartPolicy, starts_successor_first

CONFIG = RestartConfig(
    backoff_seconds=1.0, backoff_seconds_max=5.0, crash_limit=5, stable_seconds=10.0, unhealthy_seconds=60.0
)


def policy(*, attached: bool = False) -> RestartPolicy:
    return RestartPolicy(CONFIG, attached=attached)


def test_the_delay_doubles_up_to_its_bound_and_then_the_replica_is_given_up() -> None:
    crashing = policy()
    assert [crashing.on_crash(0.0, 0.5) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, None]


def test_a_replica_that_served_long_enough_begins_anew() -> None:
    crashing = policy()
    assert [crashing.on_crash(served, 0.5) for served in (0.0, 9.9, 10.0, 0.0)] == [1.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize(("jitter", "delay"), [(0.0, 0.8), (1.0, 1.2)])
def test_replicas_that_crashed_together_come_back_apart(jitter: float, delay: float) -> None:
    assert policy().on_crash(0.0, jitter) == pytest.approx(delay)


def test_a_final_crash_is_not_repeated() -> None:
    assert policy().on_crash(100.0, 0.5, final=True) is None


def test_a_replica_that_runs_elsewhere_is_tried_for_ever() -> None:
    attached = policy(attached=True)
    delays = [attached.on_crash(0.0, 0.5, final=True) for _ in range(3000)]
    assert delays[:4] == [1.0, 2.0, 4.0, 5.0]
    assert set(delays[4:]) == {5.0}


def test_only_long_illness_kills() -> None:
    ill = policy()
    checks = [(True, 0.0), (False, 1.0), (False, 60.0), (True, 60.5), (False, 61.0), (False, 120.0), (False, 121.0)]
    assert [ill.on_health(*check) for check in checks] == [None] * 6 + ["kill"]
    assert ill.on_crash(500.0, 0.5) == 1.0
    assert ill.on_health(False, 122.0) is None, "the next process is judged by its own checks"


def test_a_replica_that_runs_elsewhere_is_proven_again_and_never_killed() -> None:
    attached = policy(attached=True)
    assert [
        attached.on_health(*check) for check in ((False, 1.0), (False, 100.0), (True, 101.0), (True, 102.0))
    ] == [
        None,
        None,
        "prove",
        None,
    ]


def test_a_successor_comes_first_only_where_nobody_else_serves() -> None:
    assert [starts_successor_first(ready) for ready in (0, 1, 2)] == [True, False, False]
