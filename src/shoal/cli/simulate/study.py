"""One command's simulations: loads on fleets, judged and written up."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.cli.simulate.machines import Made, faults_of
from shoal.cli.simulate.options import Virtual
from shoal.cli.simulate.progress import Ticker

if TYPE_CHECKING:
    from shoal.sim import Simulated, SimulatedFleet
    from shoal.sim.figures import Figures
    from shoal.sim.reasons import Why
    from shoal.sim.uncertainty import Moves
    from shoal.workload.load import Load
    from shoal.workload.objectives import Objectives
    from shoal.workload.report.document import Report, Section
    from shoal.workload.report.files import Recorded
    from shoal.workload.run import RunOptions
    from shoal.workload.summary import Summary


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation, judged."""

    simulated: Simulated
    summary: Summary
    figures: Figures
    processor_seconds: float
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Study:
    """What all simulations of one command share."""

    objectives: Objectives
    virtual: Virtual
    ticker: Ticker
    seed: int = 0
    recorded: list[Recorded] = field(default_factory=list)
    partial: bool = False
    """A simulation was stopped at its horizon."""

    def simulate(
        self, fleet: SimulatedFleet, load: Load, run: RunOptions, title: str, seed: int | None = None
    ) -> Outcome:
        """Simulate a load and judge it, with the intervals of its requests."""
        from shoal.bench.checks import warnings
        from shoal.sim import SimulationOptions, simulate
        from shoal.sim.figures import figures
        from shoal.workload.report.files import Recorded
        from shoal.workload.summary import summarize

        seed = self.seed if seed is None else seed
        options = SimulationOptions(
            seed=seed,
            horizon=self.virtual.horizon,
            sample=_period(load, run, min(self.virtual.points, max(2, _SAMPLES // len(fleet.replicas)))),
            faults=faults_of(self.virtual.fault),
        )
        self.ticker.begin(title, None if run.concurrency is not None and run.requests is None else load.requests)
        began = time.process_time()
        simulated = simulate(fleet, load, run, options, self.ticker)
        spent = time.process_time() - began
        self.partial |= simulated.result.partial
        self.recorded.append(Recorded(title, simulated.result.records))
        summary = summarize(simulated.result, self.objectives, seed, _RESAMPLES)
        said = warnings(summary, simulated.result.measured)
        return Outcome(simulated, summary, figures(summary, simulated), spent, said)

    def moves(self, fleet: SimulatedFleet, load: Load, run: RunOptions) -> Moves | None:
        """How far the uncertainty of step times moves the figures; None: that is unknown, or isn't asked for.

        Before the load itself is simulated, so that its memory is not needed on top of that.
        """
        from shoal.sim import SimulationOptions, simulate
        from shoal.sim.figures import figures
        from shoal.sim.uncertainty import moves, pilot
        from shoal.workload.summary import summarize

        if not self.virtual.intervals:
            return None
        beginning = pilot(load)
        run = run if beginning.whole else replace(run, warmup=min(run.warmup, len(beginning.load.sessions) - 1))
        options = SimulationOptions(
            seed=self.seed, horizon=self.virtual.horizon, faults=faults_of(self.virtual.fault)
        )

        def figures_on(other: SimulatedFleet) -> Figures:
            self.ticker.begin("intervals", beginning.load.requests)
            simulated = simulate(other, beginning.load, run, options, self.ticker)
            return figures(summarize(simulated.result, self.objectives, self.seed, resamples=0), simulated)

        found = moves(fleet, beginning.whole, figures_on)
        gc.collect()  # a simulated world is full of cycles
        return found

    def slow(self, found: Outcome) -> list[Why]:
        """Why requests were slow, slowest first."""
        from shoal.sim.reasons import slow

        return slow(found.simulated.asks, found.simulated.result.records, self.objectives)

    def report(
        self,
        title: str,
        command: str,
        fleets: Sequence[Made],
        sections: Sequence[Section],
        meanings: tuple[tuple[str, str], ...],
    ) -> Report:
        """All of it as a report."""
        from shoal import __version__
        from shoal.workload.report.document import Report

        several = len(fleets) > 1
        facts = [
            (f"{'AB'[i]}: {name}" if several else name, text)
            for i, made in enumerate(fleets)
            for name, text in made.facts
        ]
        facts += [("simulated by", f"shoal {__version__}, seed {self.seed}")]
        moment = datetime.now().astimezone().isoformat(timespec="seconds")
        return Report(title, moment, command, tuple(facts), tuple(sections), meanings, self.partial)


_SAMPLES = 40_000
"""Looks at replicas at most, all of them together."""
_RESAMPLES = 300
"""Of the bootstrap: the ends of an interval are then good to a tenth of its width."""


def _period(load: Load, run: RunOptions, points: int) -> float:
    """Seconds between two looks at the replicas."""
    last = max((s.at for s in load.sessions if not s.after), default=0.0)
    span = last if run.concurrency is None else run.seconds or 0.0
    return max(span / points, 0.01) if span else 1.0
