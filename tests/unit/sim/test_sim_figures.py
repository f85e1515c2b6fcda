"""What a simulation is reported as: figures and their intervals, replicas over time, why requests were slow."""

import math
from dataclasses import replace

import pytest
from sim_kit import SCHEDULER, fleet, single, spec

from shoal.plan.api import find_model
from shoal.sim import Fault, Simulated, SimulationOptions, simulate
from shoal.sim.figures import Figures, across, figures, figures_data, widened
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.hardware import Machine, planned_replica
from shoal.sim.reasons import reasons_section, slow
from shoal.sim.study import compare, sweep
from shoal.sim.timeline import MOST_LINES, timeline_section
from shoal.sim.uncertainty import PILOT_SESSIONS, hurried, moves, pilot, spread_of
from shoal.specs.catalog import load_catalog
from shoal.workload.load import Load
from shoal.workload.objectives import Objectives
from shoal.workload.run import RunOptions
from shoal.workload.stats import Estimate
from shoal.workload.summary import Summary, summarize
from shoal.workload.sweep import RateSearch


def load(count: int = 60, gap: float = 0.1, prompt: int = 200, output: int = 30) -> Load:
    return single(*((i * gap, prompt, output) for i in range(count)))


def done(on: SimulatedFleet | None = None, asked: Load | None = None, **options: object) -> Simulated:
    return simulate(on or fleet(), asked or load(), RunOptions(), SimulationOptions(**options))  # type: ignore[arg-type]


def judged(simulated: Simulated, **objectives: float) -> Figures:
    return figures(summarize(simulated.result, Objectives(**objectives)), simulated)


def test_figures_are_those_of_the_records() -> None:
    simulated = done()
    found = judged(simulated)
    ttft = [r.ttft for r in simulated.result.records if r.ttft is not None]
    assert found.ttft is not None
    assert found.ttft.mean.value == pytest.approx(sum(ttft) / len(ttft))
    assert found.ttft.p50.value == sorted(ttft)[29]
    data = figures_data(found)
    assert data["requests"] == 60
    assert data["ttft"]["high"]["p99"] == found.ttft.p99.high  # type: ignore[index]


def test_seeds_are_averaged_with_students_interval() -> None:
    runs = [judged(done(asked=load(gap=gap))) for gap in (0.02, 0.05, 0.1)]
    found = across(runs)
    means = [r.e2e.mean.value for r in runs if r.e2e is not None]
    assert found.requests == 180
    assert found.e2e is not None
    assert found.e2e.mean.value == pytest.approx(sum(means) / 3)
    centre = sum(means) / 3
    deviation = math.sqrt(sum((m - centre) ** 2 for m in means) / 2)
    # Student's t of two degrees of freedom.
    assert (found.e2e.mean.high or 0) - centre == pytest.approx(4.303 * deviation / math.sqrt(3), rel=1e-3)
    assert across(runs[:1]) is runs[0]


def test_widths_add_up_in_squares() -> None:
    base = judged(done())
    assert base.e2e is not None
    narrow = replace(base, e2e=replace(base.e2e, mean=Estimate(10.0, 10.0 / math.exp(0.3), 10.0 * math.exp(0.3))))
    ends = [replace(base, e2e=replace(base.e2e, mean=Estimate(10.0 * math.exp(x)))) for x in (-0.4, 0.8)]
    middle = replace(base, e2e=replace(base.e2e, mean=Estimate(10.0)))
    found = widened(narrow, middle, ends).e2e
    assert found is not None
    assert math.log(10.0 / (found.mean.low or 0)) == pytest.approx(0.5)
    assert math.log((found.mean.high or 0) / 10.0) == pytest.approx(math.hypot(0.3, 0.8))


def test_step_times_move_figures_by_their_spread() -> None:
    machine = Machine(model=find_model("llama-3.1-8b"), accelerator=load_catalog().accelerator("h100"))
    planned = planned_replica(machine, load_catalog())
    on = SimulatedFleet(replicas=(spec("a", scheduler=planned.scheduler, step=planned.step),))
    spread = spread_of(on)
    assert spread == planned.step.spread
    # One request at a time: nothing waits, so that every latency is as much longer as the steps are.
    alone = load(count=8, gap=60.0)
    middle, slowest = judged(done(on, alone)), judged(done(hurried(on, 1), alone))
    assert middle.e2e is not None
    assert slowest.e2e is not None
    assert slowest.e2e.mean.value / middle.e2e.mean.value == pytest.approx(spread, rel=1e-6)
    moved = moves(on, whole=True, run=lambda other: judged(done(other, alone)))
    assert moved is not None
    found = moved.widen(middle)
    assert found.e2e is not None
    assert (found.e2e.mean.high or 0) / middle.e2e.mean.value == pytest.approx(spread, rel=1e-3)
    # Step times that nobody gives an interval of move nothing.
    assert moves(fleet(), whole=True, run=lambda _: middle) is None


def test_a_pilot_is_a_beginning() -> None:
    short, long = load(count=10), load(count=PILOT_SESSIONS + 1)
    assert pilot(short).whole
    assert pilot(short).load is short
    assert not pilot(long).whole
    assert pilot(long).load.sessions == long.sessions[:-1]


def test_slow_requests_say_what_they_waited_for() -> None:
    # Eight at once before one replica that runs one sequence at a time: all but the first wait in its queue.
    config = replace(SCHEDULER, max_sequences=1)
    simulated = done(SimulatedFleet(replicas=(spec("a", scheduler=config),)), load(count=8, gap=0.0))
    found = slow(simulated.asks, simulated.result.records, Objectives(ttft=0.05))
    assert [w.main for w in found] == ["replica queue"] * 7
    assert all("in the replica queue" in w.text for w in found)
    assert [w.record.ttft for w in found] == sorted((w.record.ttft for w in found), reverse=True)  # type: ignore[type-var]
    for w in found:
        assert sum(w.parts.values()) == pytest.approx(w.record.e2e)
    assert {w.main for w in slow(simulated.asks, simulated.result.records, Objectives(tpot=1e-4))} == {"decode"}
    section = reasons_section(found, Objectives(ttft=0.05))
    assert section is not None
    assert section.tables[0].rows == (("replica queue", "7", "100%"),)
    assert reasons_section([], Objectives()) is None


def test_faults_and_limits_of_the_gateway_are_named() -> None:
    crash = done(fleet(), load(), faults=(Fault("crash", 2.0, "r0"),))
    found = slow(crash.asks, crash.result.records, Objectives())
    assert any(w.main == "fault" and "r0" in w.text for w in found)
    narrow = SimulatedFleet(replicas=(spec("a", max_inflight=1),))
    waited = slow(
        *(lambda s: (s.asks, s.result.records))(done(narrow, load(count=8, gap=0.0))), Objectives(ttft=0.05)
    )
    assert {w.main for w in waited} == {"gateway queue"}


def test_replicas_are_shown_over_time() -> None:
    simulated = done(fleet(3), load(), sample=0.5)
    section = timeline_section(simulated)
    assert [row[0] for row in section.tables[0].rows] == ["r0", "r1", "r2"]
    assert sum(int(row[1]) for row in section.tables[0].rows) == 60
    running = next(plot for plot in section.plots if plot.title == "Requests running")
    assert [series.name for series in running.series] == ["r0", "r1", "r2"]
    # Of a plot that is 0 throughout there is nothing to see.
    assert "Requests queued at the gateway" not in {plot.title for plot in section.plots}
    many = timeline_section(done(fleet(MOST_LINES + 1), load(), sample=0.5))
    assert {s.name for plot in many.plots for s in plot.series} <= {"most", "mean", "least", ""}


def test_a_replica_that_is_down_runs_nothing() -> None:
    faults = (Fault("crash", 2.0, "r0"),)
    samples = done(fleet(), load(count=100, gap=0.05, output=200), sample=0.5, faults=faults).samples
    down = [s for s in samples if s.replica == "r0" and not s.available and s.time > 2.5]
    assert down
    assert {(s.running, s.waiting, s.kv_usage) for s in down} == {(0, 0, 0.0)}
    assert any(s.running for s in samples if s.replica == "r0" and s.time < 2.0)


def test_two_fleets_are_compared_pair_by_pair() -> None:
    def run(side: str, number: int) -> Summary:
        on = fleet(1 if side == "A" else 4)
        return summarize(done(on, load(gap=0.01 + number / 1000)).result, Objectives(ttft=1.0))

    found = compare(run, 3)
    ratio = next(r for r in found.ratios if r.metric == "TPOT p50")
    assert ratio.verdict == "better"
    assert ratio.rounds == 3
    assert not found.partial


def test_a_sweep_ends_between_what_met_and_what_did_not() -> None:
    def probe(rate: float, number: int) -> Summary:
        asked = replace(load(count=100, gap=1 / rate, prompt=400), rate=rate)
        return summarize(done(fleet(1), asked).result, Objectives(ttft=0.5, share=0.9))

    found = sweep(probe, RateSearch(2.0, 0.2, 14))
    assert found.best is not None
    assert found.failing is not None
    assert found.best < found.failing <= found.best * 1.2001
    assert found.confirmed
