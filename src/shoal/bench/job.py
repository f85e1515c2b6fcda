"""One command's work: measures loads against targets, keeps every record, and writes each run up as a section."""

import asyncio
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from shoal import __version__
from shoal.bench.checks import Hardware, warnings
from shoal.bench.run import Runner
from shoal.bench.target import Target
from shoal.workload.load import Load
from shoal.workload.objectives import Objectives
from shoal.workload.report.classes import class_table
from shoal.workload.report.document import Report, Section, count_table, latency_table
from shoal.workload.report.files import Recorded
from shoal.workload.report.plots import plots
from shoal.workload.run import Progress, RunOptions, RunResult, Silent
from shoal.workload.summary import DEFINITIONS, Summary, summarize


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: what happened, its figures, and its part of the report."""

    result: RunResult
    summary: Summary
    section: Section


@dataclass(slots=True)
class Job:
    """What all runs of one command share."""

    objectives: Objectives
    machine: Hardware | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    progress: Progress = field(default_factory=Silent)
    seed: int = 0
    salt: str = ""
    recorded: list[Recorded] = field(default_factory=list)
    begun: bool = False
    """A first load has been started."""

    def stopped(self) -> bool:
        return self.stop.is_set()

    async def measure(
        self, target: Target, load: Load, options: RunOptions, title: str, text: str = ""
    ) -> Measured:
        """Run a load and write it up."""
        self.begun = True
        result = await Runner(target, options, self.stop, self.progress).run(load, title)
        self.recorded.append(Recorded(title, result.records))
        return self.judge(result, title, text)

    def judge(self, result: RunResult, title: str, text: str = "") -> Measured:
        """The figures and the section of a run."""
        summary = summarize(result, self.objectives, self.seed)
        classes = class_table(result, self.objectives, self.seed)
        section = Section(
            title,
            f"{text} {summary.load}".strip(),
            (count_table(summary), latency_table(summary), *([classes] if classes else [])),
            plots(result, self.objectives),
            warnings(summary, result.measured, self.machine),
            summary.notes,
        )
        return Measured(result, summary, section)

    def report(
        self,
        title: str,
        command: str,
        targets: Sequence[Target],
        sections: Sequence[Section],
        partial: bool,
    ) -> Report:
        facts = [fact for i, target in enumerate(targets) for fact in target_facts(target, i, len(targets))]
        if self.machine is not None:
            facts.append(("floors", f"{self.machine.name}: ITL ≥ {self.machine.itl * 1e3:.3g} ms"))
        facts += [
            ("client", client_machine()),
            ("seed", f"{self.seed}, salt {self.salt!r}: for the very same prompts, give both"),
        ]
        moment = datetime.now().astimezone().isoformat(timespec="seconds")
        return Report(title, moment, command, tuple(facts), tuple(sections), DEFINITIONS, partial)


def target_facts(target: Target, place: int, of: int) -> list[tuple[str, str]]:
    """What a reader has to know of an endpoint."""
    form = "token ids" if target.takes_ids else "text"
    pinned = "lengths pinned by ignore_eos" if target.ignores_eos else "lengths not pinned"
    name = "endpoint" if of == 1 else f"{'AB'[place]}"
    text = f"{target.options.url} {target.options.api}, model {target.model}, prompts as {form}, {pinned}"
    extra = dict(target.options.extra_body)
    return [(name, text + (f", with {extra}" if extra else ""))]


def client_machine() -> str:
    """The machine that the load was made on, and the versions of what made it."""
    import os

    return (
        f"shoal {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} processors"
    )
