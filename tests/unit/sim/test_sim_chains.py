"""Sessions that wait for others, in virtual time: to the nanosecond when they say, or not at all."""

import pytest
from sim_kit import fleet

from shoal.policy.outcomes import Outcome
from shoal.sim import simulate
from shoal.sim.events import NANOSECONDS
from shoal.specs.errors import SpecError
from shoal.workload.load import Load, Segment, Session, Turn
from shoal.workload.run import RunOptions


def session(key: str, at: float = 0.0, after: tuple[int, ...] = (), tokens: int = 100, **turn: object) -> Session:
    return Session((Turn((Segment(key, tokens),), 8, **turn),), at, after, "agent")  # type: ignore[arg-type]


def test_a_session_begins_so_long_after_the_last_of_those_it_waits_for() -> None:
    load = Load(
        (
            session("a"),
            session("b", 0.25, (0,)),
            session("c", 0.5, (0,)),
            session("d", 1.0, (2, 1)),
            session("e", 9.0),
        ),
        "agents",
        1.0,
    )
    asks = {ask.session: ask for ask in simulate(fleet(), load, RunOptions()).asks}
    assert [asks[i].outcome for i in range(5)] == [Outcome.OK] * 5
    ended = {i: ask.ended or 0 for i, ask in asks.items()}
    assert asks[1].scheduled == ended[0] + NANOSECONDS // 4
    assert asks[2].scheduled == ended[0] + NANOSECONDS // 2
    assert asks[3].scheduled == max(ended[1], ended[2]) + NANOSECONDS
    assert asks[4].scheduled == 9 * NANOSECONDS
    assert {ask.name for ask in asks.values()} == {"agent"}


def test_what_waits_for_a_failure_is_not_sent() -> None:
    # Longer than any replica takes: refused.
    load = Load(
        (session("a", tokens=10**6), session("b", after=(0,)), session("c", after=(1,)), session("d")), "x", 1.0
    )
    done = simulate(fleet(), load, RunOptions())
    assert [r.session for r in done.result.records] == [0, 3]
    assert any("2 sessions were not sent" in note for note in done.result.notes)


def test_a_closed_loop_of_them_is_refused() -> None:
    load = Load((session("a"), session("b", after=(0,))), "x", 1.0)
    with pytest.raises(SpecError, match="open loop"):
        simulate(fleet(), load, RunOptions(concurrency=2))


def test_models_and_priorities_reach_the_records() -> None:
    load = Load((session("a", model="other", priority=-1), session("b")), "x", 1.0)
    first, second = simulate(fleet(), load, RunOptions()).result.records
    assert (first.model, first.priority, first.status) == ("other", -1, 404)
    assert (second.model, second.priority, second.outcome) == ("model", 0, Outcome.OK)
