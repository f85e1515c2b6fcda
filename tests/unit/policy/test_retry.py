"""What follows a failed leg: the table in `policy.retry`, row by row, and what holds for any run of failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.policy.outcomes import MEANINGS, Outcome
from shoal.policy.retry import Failure, RetryBudget, RetryConfig, RetryPolicy
from shoal.policy.routing import RouteRequest
from shoal.policy.routing.contracts import ReplicaState

RETRYABLE = {Outcome.BACKPRESSURE, Outcome.REPLICA_FAULT, Outcome.TRANSPORT_FAULT}
FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.OK]


def replica(name: str, weights: str = "w", *, healthy: bool = True, role: str = "both") -> ReplicaState:
    return ReplicaState(name, frozenset({"m"}), weights=weights, healthy=healthy, role=role)


A, B, C = replica("a"), replica("b"), replica("c")
UNKNOWN: frozenset[str] = frozenset()


def request(**changes: object) -> RouteRequest:
    return RouteRequest("x", "m", 100, 50, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_request_without_output_is_sent_to_another_replica(outcome: Outcome) -> None:
    further = RetryPolicy().retry(Failure(request(), A, outcome, 1), [A, B], 0.0)
    assert (further.excluded if further is not None else None) == ({"a"} if outcome in RETRYABLE else None)


@pytest.mark.parametrize("outcome", FAILURES)
def test_the_only_replica_is_asked_again_unless_it_was_busy(outcome: Outcome) -> None:
    leaving = replica("leaving")
    leaving.draining = True
    alone = [A, leaving, replica("p", role="prefill"), replica("ill", healthy=False)]
    further = RetryPolicy().retry(Failure(request(), A, outcome, 1), alone, 0.0)
    again = outcome in RETRYABLE and outcome is not Outcome.BACKPRESSURE
    assert (further.excluded if further is not None else None) == (UNKNOWN if again else None)


def test_a_refused_retry_of_a_busy_replica_costs_no_budget() -> None:
    policy = RetryPolicy()
    for _ in range(100):
        assert policy.retry(Failure(request(), A, Outcome.BACKPRESSURE, 1), [A], 0.0) is None
    assert policy.retry(Failure(request(), A, Outcome.BACKPRESSURE, 1), [A, B], 0.0) is not None


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_stream_is_continued_after_a_stall_too(outcome: Outcome) -> None:
    rest = RetryPolicy().resume(
        Failure(request(), A, outcome, 1), [A, B, C], 0.0, unable=frozenset({"c"}), sent_tokens=20
    )
    if outcome not in RETRYABLE | {Outcome.DEADLINE}:
        assert rest is None
    else:
        assert rest is not None
        assert (rest.excluded, rest.weights, rest.max_tokens) == ({"a", "c"}, "w", 30)


@pytest.mark.parametrize(("across", "excluded"), [(False, {"c"}), (True, {"a", "c"})])
def test_other_weights_continue_a_stream_only_where_that_is_allowed(across: bool, excluded: set[str]) -> None:
    """Where nobody else has the weights, the replica that broke off is asked again; who is unable never is."""
    policy = RetryPolicy(RetryConfig(across_engines=across))
    rest = policy.resume(
        Failure(request(), A, Outcome.REPLICA_FAULT, 1),
        [A, replica("b", "v"), C],
        0.0,
        unable=frozenset({"c"}),
        sent_tokens=99,
    )
    assert rest is not None
    assert (rest.excluded, rest.weights, rest.max_tokens) == (excluded, None if across else "w", 1)


def test_retries_are_a_share_of_requests() -> None:
    budget = RetryBudget(share=0.1, floor=0.0)
    for _ in range(100):
        budget.on_request(0.0)
    assert sum(budget.take(0.0) for _ in range(100)) in (9, 10)


def test_a_retry_takes_from_the_budget() -> None:
    policy = RetryPolicy(RetryConfig(share=0.0))
    taken = [policy.retry(Failure(request(), A, Outcome.REPLICA_FAULT, 1), [A, B], 0.0) for _ in range(12)]
    assert [further is not None for further in taken] == [True] * 10 + [False] * 2
    assert policy.retry(Failure(request(), A, Outcome.REPLICA_FAULT, 1), [A, B], 1.0) is not None, (
        "one returns per second"
    )


@given(
    outcomes=st.lists(st.sampled_from([*sorted(RETRYABLE) * 4, *FAILURES]), min_size=1, max_size=8),
    replicas=st.integers(1, 5),
    attempts=st.integers(1, 5),
    picks=st.randoms(use_true_random=False),
)
def test_no_request_is_tried_for_ever_or_twice_where_others_are_left(outcomes, replicas, attempts, picks) -> None:  # type: ignore[no-untyped-def]
    policy = RetryPolicy(RetryConfig(attempts=attempts))
    states = [replica(f"r{i}") for i in range(replicas)]
    route: RouteRequest | None = request()
    tried: list[str] = []
    for outcome in outcomes:
        assert route is not None
        allowed = [s for s in states if s.name not in route.excluded]
        assert allowed, "whoever is sent on can be taken by somebody"
        chosen = picks.choice(allowed)
        assert len(tried) >= replicas or chosen.name not in tried, "nobody twice before everybody once"
        tried.append(chosen.name)
        route = policy.retry(Failure(route, chosen, outcome, len(tried)), states, 0.0)
        if route is None:
            break
        assert MEANINGS[outcome].retry
        assert len(tried) < attempts
    assert len(tried) <= attempts
