"""`shoal bench`: load an OpenAI-compatible endpoint and report what it gave."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.bench_options import (
    Amount,
    Contents,
    Endpoint,
    Floor,
    Goal,
    LengthsOf,
    Output,
    Pace,
    Trace,
    UsageError,
    grouped,
    reproduction,
    workload_of,
)
from shoal.cli.bench_progress import progress_bar

if TYPE_CHECKING:
    from shoal.bench.job import Job
    from shoal.bench.target import Target
    from shoal.workload.report.document import Report, Section

Url = Annotated[str, typer.Argument(help="Base URL of an OpenAI-compatible server.")]
DEFAULT_URL = "http://127.0.0.1:8000"
INTERRUPTED = 130
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Load an OpenAI-compatible endpoint; report latency, throughput and goodput.",
)


@dataclass(frozen=True, slots=True)
class _Finished:
    """What a command hands to the report."""

    title: str
    targets: Sequence[Target]
    sections: Sequence[Section]
    results: object
    partial: bool


@app.command()
@grouped
def run(
    endpoint: Endpoint,
    lengths: LengthsOf,
    trace: Trace,
    amount: Amount,
    contents: Contents,
    pace: Pace,
    goal: Goal,
    floor: Floor,
    output: Output,
    url: Url = DEFAULT_URL,
) -> None:
    """Run one load: --rate (open loop), --concurrency (closed loop) or --trace."""

    async def work(job: Job) -> _Finished:
        from shoal.bench.target import Target
        from shoal.workload.options import workload

        load, options = workload(workload_of(lengths, trace, amount, pace, job.salt))
        async with await Target.open(endpoint.target(url)) as target:
            measured = await job.measure(target, load, options, "Result")
            partial = measured.result.partial
            return _Finished("Shoal bench", [target], [measured.section], measured.summary, partial)

    _execute(work, goal, floor, output, amount.seed, contents.salt)


@app.command()
@grouped
def sweep(
    endpoint: Endpoint,
    lengths: LengthsOf,
    trace: Trace,
    amount: Amount,
    contents: Contents,
    goal: Goal,
    floor: Floor,
    output: Output,
    url: Url = DEFAULT_URL,
    start: Annotated[float, typer.Option(help="Rate to begin at, sessions per second.")] = 1.0,
    tolerance: Annotated[
        float, typer.Option(help="Stop when the bracket is this narrow, as a share of the rate.")
    ] = 0.1,
    points: Annotated[int, typer.Option(min=1, help="Rates tried at most.")] = 12,
) -> None:
    """Find the highest rate that meets the objectives."""
    from shoal.workload.sweep import RateSearch

    if goal.ttft is None and goal.tpot is None and goal.e2e is None:
        raise UsageError("sweep needs an objective: --ttft, --tpot or --e2e, in milliseconds")
    search = RateSearch(start, tolerance, points)

    async def work(job: Job) -> _Finished:
        from shoal.bench.series import sweep as find
        from shoal.bench.target import Target
        from shoal.workload.options import workload
        from shoal.workload.summary import Summary
        from shoal.workload.writeup import sweep_section

        async with await Target.open(endpoint.target(url)) as target:
            sections: list[Section] = []
            described = workload_of(lengths, trace, amount, None, job.salt)

            async def probe(rate: float, number: int) -> Summary:
                load, options = workload(described, rate, f"point{number}")
                measured = await job.measure(target, load, options, f"{rate:.4g}/s")
                sections.append(measured.section)
                return measured.summary

            found = await find(probe, search, job.stopped)
            answer = sweep_section("The highest rate within objectives", found, f"Objectives: {job.objectives}")
            return _Finished("Shoal bench: sweep", [target], [answer, *sections], found, found.partial)

    _execute(work, goal, floor, output, amount.seed, contents.salt)


@app.command()
@grouped
def compare(
    endpoint: Endpoint,
    lengths: LengthsOf,
    trace: Trace,
    amount: Amount,
    contents: Contents,
    pace: Pace,
    goal: Goal,
    floor: Floor,
    output: Output,
    url_a: Annotated[str, typer.Argument(help="Base URL of A.")],
    url_b: Annotated[str, typer.Argument(help="Base URL of B; may be A's.")],
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs; each is --requests long.")] = 6,
    model_b: Annotated[str | None, typer.Option(help="B's model name, if it is another.")] = None,
    extra_body_b: Annotated[str | None, typer.Option(help="JSON fields for B's requests only.")] = None,
) -> None:
    """Compare two endpoints or configurations, interleaved in one run."""

    async def work(job: Job) -> _Finished:
        from shoal.bench.series import compare as interleave
        from shoal.bench.target import Target
        from shoal.workload.compare import Side
        from shoal.workload.options import workload
        from shoal.workload.summary import Summary
        from shoal.workload.writeup import comparison_section

        async with contextlib.AsyncExitStack() as stack:
            a = await stack.enter_async_context(await Target.open(endpoint.target(url_a)))
            b = await stack.enter_async_context(await Target.open(endpoint.target(url_b, model_b, extra_body_b)))
            sections: list[Section] = []
            described = workload_of(lengths, trace, amount, pace, job.salt)

            async def side(which: Side, number: int) -> Summary:
                load, options = workload(described, name=f"round{number}")
                target = a if which == "A" else b
                # Contents of its own: both may stand before the same cache.
                options = replace(options, salt=options.salt + which)
                measured = await job.measure(target, load, options, f"{which}, round {number + 1}")
                sections.append(measured.section)
                return measured.summary

            found = await interleave(side, rounds, job.stopped)
            every = [comparison_section(found), *sections]
            return _Finished("Shoal bench: B against A", [a, b], every, found, found.partial)

    _execute(work, goal, floor, output, amount.seed, contents.salt)


@app.command()
@grouped
def protocol(
    endpoint: Endpoint,
    lengths: LengthsOf,
    goal: Goal,
    floor: Floor,
    output: Output,
    url: Url = DEFAULT_URL,
    requests: Annotated[int, typer.Option("--requests", "-n", min=6, help="Measured requests per stage.")] = 60,
    stage_seconds: Annotated[float, typer.Option(min=1, help="Minimum seconds of a stage with a rate.")] = 20.0,
    most_users: Annotated[int, typer.Option(min=2, help="Users of the last closed-loop stage.")] = 64,
    tolerance: Annotated[float, typer.Option(help="How near to the limit the sweep goes.")] = 0.1,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same load.")] = 0,
    salt: Annotated[
        str | None, typer.Option(help="Changes the prompts' contents only; default: new each time.")
    ] = None,
) -> None:
    """Run a whole benchmark: one user, more users, the best rate, overload, reuse, interference, drift."""

    async def work(job: Job) -> _Finished:
        from shoal.bench.protocol import Protocol, ProtocolOptions
        from shoal.bench.target import Target

        shape = workload_of(lengths, Trace(), Amount()).shape()
        options = ProtocolOptions(shape, requests, stage_seconds, most_users, tolerance, deadline=timeout)
        async with await Target.open(endpoint.target(url)) as target:
            stages = Protocol(job, target, options, [], [])
            await stages.run()
            return _Finished(
                "Shoal bench: protocol", [target], stages.sections, tuple(stages.stages), job.stopped()
            )

    _execute(work, goal, floor, output, seed, salt)


def _execute(
    work: Callable[[Job], Awaitable[_Finished]],
    goal: Goal,
    floor: Floor,
    output: Output,
    seed: int,
    salt: str | None,
) -> None:
    """Run, show, write.

    The first SIGINT or SIGTERM ends the load and reports what was measured; the second ends the process.
    """
    from shoal.bench.checks import hardware
    from shoal.bench.job import Job

    objectives, machine = goal.objectives(), hardware(floor.hardware())
    received: list[signal.Signals] = []
    with progress_bar() as progress:

        async def main() -> tuple[Report, object, Job]:
            # A run after another must not find its prompts in the server's cache, unless that is wanted.
            job = Job(objectives, machine, asyncio.Event(), progress, seed, salt or secrets.token_hex(4))
            loop = asyncio.get_running_loop()
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                for number in _STOP_SIGNALS:
                    loop.add_signal_handler(number, _interrupt, job, number, received, asyncio.current_task())
            done = await work(job)
            command = reproduction(["bench", *_typed()], seed)
            return job.report(done.title, command, done.targets, done.sections, done.partial), done.results, job

        try:
            report, results, job = asyncio.run(main())
        except asyncio.CancelledError:
            typer.echo("interrupted before the first request", err=True)
            raise typer.Exit(128 + received[0] if received else INTERRUPTED) from None
    to_stdout = output.json_file is not None and str(output.json_file) == "-"
    if not to_stdout:
        from shoal.cli.console import stdout_console
        from shoal.workload.report import show

        show(report, stdout_console())
    _write(output, report, results, job)
    if report.partial:
        raise typer.Exit(128 + received[0] if received else INTERRUPTED)


def _interrupt(
    job: Job, number: signal.Signals, received: list[signal.Signals], command: asyncio.Task[Any] | None
) -> None:
    received.append(number)
    job.stop.set()
    if not job.begun and command is not None:
        command.cancel()  # it asks the server what it can do, and nothing has been measured yet
    for handled in _STOP_SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(handled)


def _write(output: Output, report: Report, results: object, job: Job) -> None:
    from shoal.workload.report.files import json_bytes, write_csv, write_json, write_jsonl
    from shoal.workload.report.html import write_html

    path = None
    try:
        if (path := output.json_file) is not None:
            if str(path) == "-":
                typer.echo(json_bytes(report, results).decode())
            else:
                write_json(path, report, results)
        if (path := output.csv_file) is not None:
            write_csv(path, job.recorded)
        if (path := output.jsonl_file) is not None:
            write_jsonl(path, job.recorded)
        if (path := output.html_file) is not None:
            write_html(path, report)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _typed() -> list[str]:
    """The arguments after `bench`, as this process got them."""
    arguments = sys.argv[1:]
    return arguments[1:] if arguments[:1] == ["bench"] else arguments
