"""A benchmark that can be defended: one user, a ladder of users, the rate within objectives, overload, reuse,
interference, and at the end the first stage again, to see how far the machine itself drifted.

Each stage answers one question and says which. Objectives that nobody gave are derived from the first stage, and
the report says so.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from shoal.bench.job import Job, Measured
from shoal.bench.series import sweep
from shoal.bench.target import Target
from shoal.workload.load import Load, Segment, Session, Shape, Turn, at_times, made_up
from shoal.workload.objectives import Objectives
from shoal.workload.records import Record
from shoal.workload.report.document import Plot, Section, Series, Table, amount, number, quantile_cell
from shoal.workload.run import RunOptions, RunResult
from shoal.workload.summary import Summary, summarize
from shoal.workload.sweep import RateSearch, SweepResult
from shoal.workload.writeup import sweep_section

_TTFT_FACTOR, _TPOT_FACTOR = 10.0, 3.0
"""Derived objectives: so many times what one user alone sees."""
_PLATEAU = 1.05
"""The ladder ends where twice the users give less than this times the tokens."""
_MIN_WINDOW = 8.0
"""A stage with a rate lasts so many times what one user waits for an answer: shorter, its queue can't be judged."""
_LONG = 8
"""An interfering prompt is so many times as long as the others."""


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    shape: Shape
    requests: int = 60
    """Measured requests of a stage (at least)."""
    seconds: float = 20.0
    """Least duration of a stage with a rate: a queue needs time to show."""
    most_users: int = 64
    tolerance: float = 0.1
    points: int = 12
    """Rates that the sweep may try."""
    deadline: float = 600.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's name and figures, for programs."""

    name: str
    summary: Summary


@dataclass(slots=True)
class Protocol:
    """Runs the stages in order; `sections` and `stages` hold what is done, at any moment."""

    job: Job
    target: Target
    options: ProtocolOptions
    sections: list[Section]
    stages: list[Stage]
    derived: bool = False
    alone_e2e: float = 0.0
    """Median E2E of one user, seconds."""

    async def run(self) -> None:
        """All stages, or as many as come before the stop."""
        async for _ in self._steps():
            if self.job.stopped():
                return

    async def _steps(self) -> AsyncIterator[None]:
        alone = await self._alone("1 · One user", "What a user sees on an idle server: the floor of every latency.")
        yield
        self.alone_e2e = 0.0 if alone.summary.e2e is None else alone.summary.e2e.at(0.5).value
        self._objectives(alone.summary)
        ladder = await self._ladder()
        yield
        found = await self._sweep(max(s.completed_rate for s in ladder))
        yield
        rate = found.best
        if rate is not None:
            await self._open("4 · At 70 % of that rate", "Where to run it: the figures to quote.", 0.7 * rate)
            yield
            await self._open("5 · At twice that rate", "Overload: who is served in time, who is refused.", 2 * rate)
            yield
        await self._reuse()
        yield
        await self._interference(rate or 0.5 * max(s.completed_rate for s in ladder))
        yield
        again = await self._alone(
            "8 · One user again", "The first stage repeated: what the machine itself drifted."
        )
        self._drift(alone.summary, again.summary)

    async def _measure(self, title: str, text: str, load: Load, options: RunOptions) -> Measured:
        measured = await self.job.measure(self.target, load, options, title, text)
        self.sections.append(measured.section)
        self.stages.append(Stage(title, measured.summary))
        return measured

    def _closed(self, users: int, requests: int) -> RunOptions:
        return RunOptions(requests, None, users, users, self.options.deadline, self.job.seed, self.job.salt)

    def _open_options(self) -> RunOptions:
        return RunOptions(deadline=self.options.deadline, seed=self.job.seed, salt=self.job.salt)

    async def _alone(self, title: str, text: str) -> Measured:
        load = made_up(self.options.shape, self.options.requests // 2 + 6, self.job.seed, title)
        return await self._measure(title, text, load, self._closed(1, max(3, self.options.requests // 2)))

    def _objectives(self, alone: Summary) -> None:
        if self.job.objectives.any or alone.ttft is None:
            return
        speed = _user_speed(alone)
        tpot = None if speed is None else _TPOT_FACTOR / speed
        first = alone.ttft.at(0.5).value * _TTFT_FACTOR
        self.job.objectives = Objectives(ttft=first, tpot=tpot, share=self.job.objectives.share)
        self.derived = True

    async def _ladder(self) -> list[Summary]:
        """Twice the users each time, until the tokens no longer grow."""
        users, found = 2, [self.stages[0].summary]
        points = [(1, found[0])]
        while users <= self.options.most_users and not self.job.stopped():
            requests = max(self.options.requests // 2, 2 * users)
            load = made_up(self.options.shape, requests + 6 * users, self.job.seed, f"ladder{users}")
            title = f"{users} users"
            measured = await self.job.measure(self.target, load, self._closed(users, requests), title)
            self.stages.append(Stage(title, measured.summary))
            points.append((users, measured.summary))
            found.append(measured.summary)
            if found[-1].output_rate.value < _PLATEAU * found[-2].output_rate.value:
                break
            users *= 2
        self.sections.append(_ladder_section(points))
        return found

    def _count(self, rate: float) -> int:
        return max(self.options.requests, int(rate * max(self.options.seconds, _MIN_WINDOW * self.alone_e2e)))

    async def _sweep(self, capacity: float) -> SweepResult:
        async def probe(rate: float, number_of: int) -> Summary:
            load = made_up(self.options.shape, self._count(rate), self.job.seed, f"sweep{number_of}")
            load = at_times(load, "poisson", rate, self.job.seed + number_of)
            options = self._open_options()
            measured = await self.job.measure(self.target, load, options, f"sweep {rate:.3g}/s")
            return measured.summary

        search = RateSearch(max(0.01, 0.5 * capacity), self.options.tolerance, self.options.points)
        found = await sweep(probe, search, self.job.stopped, capacity)
        given = f"Objectives: {self.job.objectives}"
        given += f" (derived: {_TTFT_FACTOR:g} and {_TPOT_FACTOR:g} times one user's)" if self.derived else ""
        self.sections.append(sweep_section("3 · The highest rate within objectives", found, given))
        self.stages += [Stage(f"sweep {p.rate:.4g}/s", p.summary) for p in found.points]
        return found

    async def _open(self, title: str, text: str, rate: float) -> None:
        load = made_up(self.options.shape, 2 * self._count(rate), self.job.seed, title)
        options = self._open_options()
        await self._measure(title, text, at_times(load, "poisson", rate, self.job.seed), options)

    async def _reuse(self) -> None:
        """The same lengths twice: every prompt new, then most of every prompt shared."""
        whole = round(self.options.shape.input.mean)
        shared = max(1, whole * 3 // 4)
        part = replace(self.options.shape.input, shape="fixed", first=float(max(1, whole - shared)), second=0.0)
        title = "6 · Shared prefixes"
        sides = []
        for name, shape in (
            ("new prompts", replace(self.options.shape, input=replace(part, first=float(whole)), shared=0)),
            ("three quarters shared", replace(self.options.shape, input=part, shared=shared, groups=1)),
        ):
            load = made_up(shape, self.options.requests // 2 + 6, self.job.seed, f"reuse {name}")
            options = self._closed(1, max(3, self.options.requests // 2))
            measured = await self.job.measure(self.target, load, options, f"{title}: {name}")
            self.stages.append(Stage(f"{title}: {name}", measured.summary))
            sides.append((name, measured.summary))
        text = "One user, prompts of one length: every one new, or beginning as the others do."
        self.sections.append(_sides_section(title, text, sides))

    async def _interference(self, rate: float) -> None:
        """Short requests at half the rate, without and with long prompts among them: only the short ones count."""
        title, half = "7 · Long prompts among short", 0.5 * rate
        short = at_times(
            made_up(self.options.shape, self._count(half), self.job.seed, title), "poisson", half, self.job.seed
        )
        options = self._open_options()
        limit = self.target.max_model_len
        long = round(self.options.shape.input.mean * _LONG)
        if limit is not None:
            long = min(long, limit - 8)
        every = max(2, len(short.sessions) // 8)
        added = tuple(
            Session((Turn((Segment(f"long/{i}", long),), 4),), s.at) for i, s in enumerate(short.sessions[::every])
        )
        mixed = replace(short, sessions=tuple(sorted((*short.sessions, *added), key=lambda s: s.at)))
        ours = {i for i, s in enumerate(mixed.sessions) if s.turns[0].new[0].name.startswith(title)}
        sides = []
        for name, load, kept in (("short only", short, None), (f"with prompts of {long} tokens", mixed, ours)):
            # Other contents, or the second run would find the first one's prompts cached.
            options = replace(options, salt=f"{self.job.salt}/{name}")
            measured = await self.job.measure(self.target, load, options, f"{title}: {name}")
            summary = summarize(_only(measured.result, kept), self.job.objectives, self.job.seed)
            self.stages.append(Stage(f"{title}: {name}", summary))
            sides.append((name, summary))
        text = "What a long prompt does to the streams of others, whose figures alone are shown."
        self.sections.append(_sides_section(title, text, sides))

    def _drift(self, first: Summary, last: Summary) -> None:
        if first.e2e is None or last.e2e is None or first.e2e.at(0.5).value <= 0:
            return
        ratio = last.e2e.at(0.5).value / first.e2e.at(0.5).value
        text = (
            f"Median E2E of the last stage is {ratio:.3f} of the first: differences smaller than that mean nothing."
        )
        self.sections.append(Section("Drift", text))


def _only(result: RunResult, sessions: set[int] | None) -> RunResult:
    if sessions is None:
        return result
    kept: tuple[Record, ...] = tuple(r for r in result.records if r.session in sessions)
    return replace(result, records=kept)


def _user_speed(s: Summary) -> float | None:
    """Median tokens per second of one stream; None where its tokens came all at once, or nothing was measured."""
    return None if s.tpot is None or s.tpot.at(0.5).value <= 0 else 1 / s.tpot.at(0.5).value


def _ladder_section(points: list[tuple[int, Summary]]) -> Section:
    rows = [
        (
            str(users),
            amount(s.output_rate),
            quantile_cell(s.tpot, 0.5),
            quantile_cell(s.ttft, 0.5),
            "–" if (speed := _user_speed(s)) is None else number(speed),
        )
        for users, s in points
    ]
    table = Table(("users", "tokens/s", "TPOT p50 ms", "TTFT p50 ms", "tokens/s/user"), tuple(rows))
    pareto = tuple((speed, s.output_rate.value) for _, s in points if (speed := _user_speed(s)) is not None)
    plot = Plot("Throughput against speed for a user", "tokens/s/user", "tokens/s", (Series("", pareto),))
    return Section(
        "2 · More users",
        "A closed loop with twice the users each time: what throughput costs each of them.",
        (table,),
        (plot,),
        notes=tuple(f"{users} users: {s.failed} requests failed" for users, s in points if s.failed),
    )


def _cells(name: str, s: Summary) -> tuple[str, ...]:
    hit = "–" if s.hit_rate is None else f"{s.hit_rate:.0%}"
    latencies = (quantile_cell(s.ttft, 0.5), quantile_cell(s.ttft, 0.99), quantile_cell(s.itl, 0.99))
    return (name, str(s.requests), *latencies, hit)


_HEADER = ("", "n", "TTFT p50 ms", "TTFT p99 ms", "ITL p99 ms", "cached")


def _sides_section(title: str, text: str, sides: list[tuple[str, Summary]]) -> Section:
    return Section(title, text, (Table(_HEADER, tuple(_cells(name, summary) for name, summary in sides)),))
