"""Outcomes, breaker and admission: the decisions about whether a request is tried at all."""

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.admission import Admission, AdmissionConfig, retry_after_header
from shoal.policy.breaker import Breaker, BreakerConfig
from shoal.policy.outcomes import MEANINGS, LegFailed, Outcome, outcome_of_exception, outcome_of_status
from shoal.policy.routing import NoReplica, RouteRequest


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (301, "replica_fault"),
        (400, "client_error"),
        (401, "replica_fault"),
        (404, "client_error"),
        (408, "transport_fault"),
        (413, "client_error"),
        (422, "client_error"),
        (429, "backpressure"),
        (499, "cancelled"),
        (500, "replica_fault"),
        (501, "client_error"),
        (502, "replica_fault"),
        (503, "backpressure"),
        (504, "deadline"),
    ],
)
def test_a_status_is_an_outcome(status: int, outcome: str) -> None:
    assert outcome_of_status(status) == outcome


def test_an_exception_is_an_outcome() -> None:
    assert outcome_of_exception(TimeoutError()) is Outcome.DEADLINE
    assert outcome_of_exception(ConnectionResetError()) is Outcome.TRANSPORT_FAULT
    assert outcome_of_exception(ValueError()) is Outcome.REPLICA_FAULT
    assert outcome_of_exception(KeyboardInterrupt()) is Outcome.CANCELLED
    assert outcome_of_exception(LegFailed(Outcome.BACKPRESSURE, "busy")) is Outcome.BACKPRESSURE


def test_every_outcome_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Outcome)
    assert {o for o, m in MEANINGS.items() if m.breaker == "fault"} == {"replica_fault", "transport_fault"}


def test_a_breaker_opens_probes_and_closes() -> None:
    breaker = Breaker(BreakerConfig(consecutive=2, open_seconds=1.0, probes=1))
    for now in (0.0, 0.1):
        breaker.record(Outcome.REPLICA_FAULT, now, breaker.admit(now))
    assert breaker.state(0.2) == "open"
    assert not breaker.allows(1.0)
    assert breaker.allows(1.2)
    era = breaker.admit(1.2)
    assert not breaker.allows(1.2), "one probe at a time"
    breaker.record(Outcome.TRANSPORT_FAULT, 1.3, era)
    assert not breaker.allows(3.2), "it waits twice as long"
    era = breaker.admit(3.4)
    breaker.record(Outcome.OK, 3.5, era)
    assert breaker.state(3.5) == "closed"


def test_a_success_from_before_it_opened_does_not_close_it() -> None:
    breaker = Breaker(BreakerConfig(consecutive=1, open_seconds=1.0))
    old = breaker.admit(0.0)
    breaker.record(Outcome.REPLICA_FAULT, 0.1, breaker.admit(0.0))
    breaker.record(Outcome.OK, 5.0, old)
    assert breaker.state(5.0) == "half_open"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["client_error", "backpressure", "cancelled", "deadline", "ok"]), max_size=80))
def test_what_is_no_fault_never_opens_a_breaker(outcomes: list[str]) -> None:
    breaker = Breaker(BreakerConfig(consecutive=1))
    for i, outcome in enumerate(outcomes):
        breaker.record(Outcome(outcome), float(i), breaker.admit(float(i)))
        assert breaker.state(float(i)) == "closed"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Outcome)), st.floats(0, 3)), max_size=60))
def test_a_breaker_always_lets_something_through_again(steps: list[tuple[Outcome, float]]) -> None:
    breaker, now = Breaker(BreakerConfig(consecutive=2)), 0.0
    for outcome, wait in steps:
        now += wait
        if breaker.allows(now):
            breaker.record(outcome, now, breaker.admit(now))
    assert breaker.allows(now + 31)


def waiting(name: str, client: str = "k", priority: int = 0, tokens: int = 100, model: str = "m") -> RouteRequest:
    return RouteRequest(name, model, tokens, 10, client=client, priority=priority)


def drained(door: Admission, now: float = 0.0) -> list[str]:
    names = []
    while order := door.order(now):
        door.admit(order[0])
        names.append(order[0].id)
    return names


def test_priorities_come_first_and_age_lifts_them() -> None:
    door = Admission(AdmissionConfig(starvation=10))
    door.enqueue(waiting("late", "a", priority=5), 0.0, 1000)
    door.enqueue(waiting("soon", "b", priority=0), 1.0, 1000)
    assert [t.id for t in door.order(2.0)] == ["soon"]
    assert [t.id for t in door.order(10.5)] == ["late"]


def test_a_flood_of_one_key_delays_itself() -> None:
    door = Admission()
    for i in range(20):
        door.enqueue(waiting(f"flood{i}", "flood"), float(i) / 100, 1000)
    for i in range(3):
        door.enqueue(waiting(f"calm{i}", "calm"), 1.0, 1000)
    served = drained(door, 1.0)
    assert max(served.index(f"calm{i}") for i in range(3)) <= 6


def test_idle_keys_save_nothing_up() -> None:
    door = Admission()
    for i in range(50):
        door.enqueue(waiting(f"a{i}", "a"), 0.0, 1000)
    for _ in range(30):
        door.admit(door.order(0.0)[0])
    for i in range(30):
        door.enqueue(waiting(f"b{i}", "b"), 1.0, 1000)
    served = drained(door, 1.0)[:20]
    assert 8 <= sum(name.startswith("b") for name in served) <= 12


def test_lanes_do_not_wait_for_each_other() -> None:
    door = Admission()
    door.enqueue(waiting("hot1", model="hot"), 0.0, 1000)
    door.enqueue(waiting("hot2", model="hot"), 0.0, 1000)
    door.enqueue(waiting("cold", model="cold"), 0.0, 1000)
    assert {t.id for t in door.order(0.0, 10)} == {"hot1", "cold"}


def test_what_would_be_late_is_refused_with_an_honest_time() -> None:
    door = Admission(AdmissionConfig(ttft_target=2.0))
    assert door.judge(waiting("a"), 1.9, 1000) is None
    refusal = door.judge(waiting("b"), 4.5, 1000)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(2.5)
    assert retry_after_header(refusal.retry_after) == "3"
    for i in range(20):
        door.enqueue(waiting(f"q{i}"), 0.0, 1000)
    refusal = door.judge(waiting("c"), 0.5, 1000)
    assert refusal is not None, "2000 tokens wait at 1000 a second"
    assert refusal.retry_after == pytest.approx(0.5)


def test_a_full_queue_refuses() -> None:
    door = Admission(AdmissionConfig(max_queue=1))
    assert door.enqueue(waiting("a"), 0.0, 1000) is None
    refusal = door.enqueue(waiting("b"), 0.0, 1000)
    assert refusal is not None
    assert refusal.code == "queue_full"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("qla"), st.integers(0, 9), st.sampled_from("xyz")), max_size=60))
def test_the_door_counts_exactly(steps: list[tuple[str, int, str]]) -> None:
    door = Admission(AdmissionConfig(ttft_target=0.5))
    queued: dict[str, RouteRequest] = {}
    for i, (action, which, key) in enumerate(steps):
        if action == "q":
            t = waiting(f"{i}", key, priority=which, tokens=which + 1, model=key)
            door.enqueue(t, float(i), 100)
            queued[t.id] = t
        elif queued and action == "l":
            name = sorted(queued)[which % len(queued)]
            door.leave(queued.pop(name))
        elif queued:
            t = door.order(float(i))[0]
            door.admit(t)
            del queued[t.id]
        assert door.queued == len(queued)
        assert all(door.has_queue(model) == any(t.model == model for t in queued.values()) for model in "xyz")
        late = door.judge(waiting("next"), 0.0, 1.0)
        assert (0 if late is None else late.retry_after + 0.5) == sum(t.prompt_tokens for t in queued.values())
    assert sorted(drained(door)) == sorted(queued)


@pytest.mark.parametrize(
    ("kind", "excluded", "seconds"),
    [
        (None, frozenset(), 60.0),
        ("busy", frozenset(), 60.0),
        ("busy", frozenset({"a"}), 60.0),
        ("down", frozenset(), 5.0),
        ("down", frozenset({"a"}), 0.0),
        ("model", frozenset(), 0.0),
    ],
)
def test_why_there_is_no_replica_decides_how_long_to_wait(
    kind: Literal["model", "busy", "down"] | None, excluded: frozenset[str], seconds: float
) -> None:
    request = RouteRequest("x", "m", 1, excluded=excluded)
    why = None if kind is None else NoReplica(kind, "")
    assert Admission(down_seconds=5.0).patience(request, why) == seconds


def test_what_would_be_slow_a_token_is_refused_too() -> None:
    door = Admission(AdmissionConfig(tpot_target=0.1))
    assert door.judge(waiting("a"), 99.0, 1000, 0.1) is None
    assert door.judge(waiting("a"), 99.0, 1000, None) is None
    refusal = door.judge(waiting("b"), None, 1000, 0.2)
    assert refusal is not None
    assert refusal.code == "overloaded"
    assert refusal.retry_after == pytest.approx(waiting("b").max_tokens * 0.1)
    assert not Admission(AdmissionConfig()).judges
