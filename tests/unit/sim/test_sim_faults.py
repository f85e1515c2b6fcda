"""Faults of every kind: what its client gets, what the replica is taken for, and that it comes back."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_kit import SCHEDULER, fleet, single, spec

from shoal.policy.outcomes import Outcome
from shoal.policy.routing import RouterConfig
from shoal.policy.split import SplitConfig
from shoal.sim import Fault, FaultRates, Simulated, SimulatedFleet, SimulationOptions, simulate
from shoal.sim.asks import Ask
from shoal.sim.events import nanoseconds
from shoal.sim.faults import KINDS, FaultKind
from shoal.specs.errors import SpecError
from shoal.workload.load import Load, Segment, Session, Turn
from shoal.workload.run import RunOptions


def run(
    on: SimulatedFleet, load: Load, *faults: Fault, deadline: float = 300.0, sample: float | None = None
) -> Simulated:
    return simulate(on, load, RunOptions(deadline=deadline), SimulationOptions(faults=faults, sample=sample))


def steady(count: int = 60, gap: float = 1.0, prompt: int = 200, output: int = 100) -> Load:
    return single(*((i * gap, prompt, output) for i in range(count)))


def sent_after(done: Simulated, seconds: float) -> list[Ask]:
    return [ask for ask in done.asks if ask.sent >= nanoseconds(seconds)]


def all_answered(done: Simulated) -> bool:
    return all(ask.outcome is Outcome.OK and ask.tokens == ask.output for ask in done.asks)


ROUND = RouterConfig(policy="round_robin")


def test_a_crash_is_carried_on_elsewhere_and_started_again() -> None:
    # It has begun at 2.0 and lasts for 6 s.
    done = run(fleet(2, router=ROUND), steady(output=1000), Fault("crash", 3.0, "r0"))
    assert all_answered(done)
    hit = [ask for ask in done.asks if ask.continued]
    assert hit
    assert {ask.replica for ask in hit} == {"r1"}
    assert all(ask.faults == ["r0: the connection broke"] for ask in hit)
    assert done.crashes == 1
    # 0.5 s to be seen and 30 s to load: nothing goes there until then, and then again.
    down = [a for a in done.asks if nanoseconds(3.0) < a.sent < nanoseconds(33.0)]
    assert {a.replica for a in down} == {"r1"}
    assert "r0" in {a.replica for a in sent_after(done, 35.0)}


def test_a_failed_load_is_tried_again_and_given_up_after_five() -> None:
    twice = run(fleet(2, router=ROUND), steady(240), Fault("failed_load", 3.0, "r0", factor=2))
    assert all_answered(twice)
    assert twice.given_up == 0
    back = min(a.sent for a in sent_after(twice, 4.0) if a.replica == "r0")
    assert nanoseconds(90.0) < back < nanoseconds(100.0)  # three loads of 30 s, and the time between
    for_ever = run(fleet(2, router=ROUND), steady(400), Fault("failed_load", 3.0, "r0", factor=9))
    assert for_ever.given_up == 1
    assert all_answered(for_ever)
    assert {a.replica for a in sent_after(for_ever, 4.0)} == {"r1"}


def test_a_hang_is_found_by_checks_and_its_streams_go_on_elsewhere() -> None:
    done = run(fleet(2, router=ROUND), steady(output=1000), Fault("hang", 3.0, "r0", 40.0))
    assert all_answered(done)
    hit = [ask for ask in done.asks if ask.faults]
    assert hit
    assert all("r0: it is unhealthy" in ask.faults for ask in hit)
    # Three checks of 3 s each, one second apart: after 12 s nothing is sent there until it answers again.
    ill = [a for a in done.asks if nanoseconds(16.0) < a.sent < nanoseconds(43.0)]
    assert {a.replica for a in ill} == {"r1"}
    assert "r0" in {a.replica for a in sent_after(done, 45.0)}


def test_a_short_hang_is_sat_out() -> None:
    done = run(fleet(1), steady(3, output=500), Fault("hang", 1.0, "r0", 5.0))
    assert all_answered(done)
    assert done.hangs == 0
    assert not any(ask.faults for ask in done.asks)
    assert max((ask.ended or 0) - ask.sent for ask in done.asks) > nanoseconds(7.0)


def test_a_straggler_is_set_aside_and_returns() -> None:
    done = run(fleet(4, router=ROUND), steady(400, gap=0.25), Fault("slow", 20.0, "r0", 30.0, factor=20.0))
    assert all_answered(done)
    assert done.ejections >= 1
    assert "r0" in {a.replica for a in sent_after(done, 85.0)}


def test_a_partition_ends_legs_there_and_heals() -> None:
    done = run(fleet(2, router=ROUND), steady(80, output=1000), Fault("partition", 3.0, "r0", 40.0))
    assert all_answered(done)
    assert any(ask.continued for ask in done.asks)
    assert done.crashes == 0
    cut = [a for a in done.asks if nanoseconds(16.0) < a.sent < nanoseconds(43.0)]
    assert {a.replica for a in cut} == {"r1"}
    assert "r0" in {a.replica for a in sent_after(done, 46.0)}


def test_a_partition_that_is_over_before_it_is_found_only_delays() -> None:
    done = run(fleet(1), steady(1, output=100), Fault("partition", 0.1, "r0", 5.0))
    (ask,) = done.asks
    assert ask.outcome is Outcome.OK
    assert ask.legs == 1
    assert ask.ended == nanoseconds(5.1)


def test_lost_events_cost_hits_and_nothing_else() -> None:
    prompt = (Segment("shared", 480), Segment("own", 16))
    load = Load(tuple(Session((Turn(prompt, 10),), float(i)) for i in range(6)), "alike", 1.0)
    kept, lost = (
        run(fleet(3), load, *faults) for faults in ((), tuple(Fault("lost_events", 2.5, f"r{i}") for i in range(3)))
    )
    assert all_answered(kept)
    assert all_answered(lost)
    predicted = [[ask.predicted_hit > 0 for ask in done.asks] for done in (kept, lost)]
    assert predicted == [[False, True, True, True, True, True], [False, True, True, False, True, True]]


def test_full_memory_is_waited_for_or_left() -> None:
    done = run(fleet(1), steady(4, prompt=2000), Fault("full_kv", 0.5, "r0", 20.0, factor=600.0))
    assert all_answered(done)
    waited = [ask for ask in done.asks if (ask.first or 0) >= nanoseconds(20.5)]
    assert len(waited) == 3
    # With another replica, whoever is stuck for more than half a minute goes there.
    moved = run(fleet(2, router=ROUND), steady(4, prompt=2000), Fault("full_kv", 0.5, "r0", 300.0, factor=600.0))
    assert all_answered(moved)
    assert moved.hangs == 1
    assert {a.replica for a in moved.asks if a.faults} == {"r1"}


def pair(link: float, **changes: object) -> SimulatedFleet:
    """A prefill and a decode replica."""
    specs = tuple(spec(role, role=role, kv_token_bytes=1000.0, link_bytes=link) for role in ("prefill", "decode"))
    return fleet(replicas=specs, split=SplitConfig(threshold_tokens=64), **changes)


def test_a_slow_link_delays_hand_offs() -> None:
    load = single((0.0, 1600, 10), (10.0, 1600, 10), (60.0, 1600, 10))
    done = run(pair(1e6), load, Fault("slow_link", 5.0, "prefill", 30.0, factor=10.0))
    assert all_answered(done)
    assert (done.handoffs.handed, done.handoffs.taken) == (3, 3)
    first = [((ask.first or 0) - ask.sent) / 1e9 for ask in done.asks]
    # 1,600 tokens of 1,000 bytes take 1.6 s, and 16 s over a tenth of the link.
    assert first[1] - first[0] == pytest.approx(14.4, abs=0.01)
    assert first[2] == pytest.approx(first[0], abs=0.01)


def test_a_prefill_replica_that_is_down_costs_no_request() -> None:
    load = steady(40, prompt=600, output=20)
    done = run(pair(1e9), load, Fault("crash", 5.2, "prefill"), Fault("hang", 38.0, "prefill", 20.0))
    assert all_answered(done)
    assert 0 < done.handoffs.handed < 40
    counts = done.handoffs
    assert counts.handed == counts.taken + counts.released + counts.lost + counts.live


def test_what_was_handed_to_a_decode_replica_that_dies_is_lost_or_released() -> None:
    specs = (
        spec("p", role="prefill", kv_token_bytes=1000.0, link_bytes=1e5),
        *(spec(f"d{i}", role="decode", kv_token_bytes=1000.0, link_bytes=1e5) for i in range(2)),
    )
    made = SimulatedFleet(replicas=specs, split=SplitConfig(threshold_tokens=64))
    # The hand-off takes 6 s; its decode replica dies meanwhile.
    done = run(made, single((0.0, 600, 20)), Fault("crash", 3.0, "d0"), Fault("crash", 3.0, "d1"))
    assert done.handoffs.lost == 1
    # The client leaves meanwhile: what was handed over is fetched and dropped, behind what is under way.
    left = run(made, single((0.0, 600, 20), (20.0, 10, 5)), deadline=3.0)
    assert left.asks[0].outcome is Outcome.DEADLINE
    assert left.handoffs.released + left.handoffs.lost == 1


def test_rates_are_kept_and_drawn_alike_for_a_seed() -> None:
    rates = FaultRates(per_hour={"crash": 0.5, "slow": 0.1}, seconds=20.0)
    drawn = rates.draw([f"r{i}" for i in range(40)], 100.0, seed=3)
    assert drawn == rates.draw([f"r{i}" for i in range(40)], 100.0, seed=3)
    crashes = [f for f in drawn if f.kind == "crash"]
    assert len(crashes) == pytest.approx(2000, rel=0.07)
    assert len(drawn) - len(crashes) == pytest.approx(400, rel=0.15)
    assert sum(f.seconds for f in drawn) / len(drawn) == pytest.approx(20.0, rel=0.1)
    assert all(a.at <= b.at for a, b in itertools.pairwise(drawn))


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ({"kind": "flood"}, "one of crash"),
        ({"at": -1.0}, "fault.at"),
        ({"kind": "slow", "factor": 0.5}, "fault.factor"),
        ({"replica": "r9"}, "fault.replica"),
    ],
)
def test_faults_that_cannot_be_are_refused(fault: dict[str, object], what: str) -> None:
    def go() -> None:
        made = Fault(**({"kind": "crash", "at": 1.0, "replica": "r0"} | fault))  # type: ignore[arg-type]
        run(fleet(2), steady(2), made)

    with pytest.raises(SpecError, match=what):
        go()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(KINDS), min_size=1, max_size=8))
def test_no_request_is_lost_whatever_breaks(seed: int, kinds: list[FaultKind]) -> None:
    """`simulate` proves the books of leases, blocks and hand-overs; here are the fates."""
    draw = random.Random(seed)
    blocks = draw.choice([60, 90, SCHEDULER.num_blocks])
    roles = draw.choice([["both"] * 3, ["prefill", "decode", "decode"], ["prefill", "decode", "both"]])
    specs = tuple(
        spec(
            f"r{i}",
            role=role,
            scheduler=replace(SCHEDULER, num_blocks=blocks),
            kv_token_bytes=1000.0,
            link_bytes=1e6,
        )
        for i, role in enumerate(roles)
    )
    made = SimulatedFleet(replicas=specs, split=SplitConfig(threshold_tokens=50), router=ROUND)
    faults = [Fault(k, draw.uniform(0, 30), f"r{draw.randrange(3)}", draw.expovariate(0.05), 8.0) for k in kinds]
    load = single(*sorted((draw.uniform(0, 30), draw.randint(1, 500), draw.randint(1, 300)) for _ in range(60)))
    done = run(made, load, *faults, deadline=draw.choice([10.0, 120.0]))
    assert len(done.asks) == 60
    for ask in done.asks:
        assert ask.outcome is not None
        assert (ask.outcome is not Outcome.OK) or ask.tokens == ask.output
        assert ask.tokens <= ask.output
    assert dict(done.faults).keys() <= set(KINDS)
