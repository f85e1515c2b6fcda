"""The options of `shoal bench`, in groups that its commands share, and the decorator that hands them out."""

import inspect
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from shoal.bench.checks import HardwareOptions
    from shoal.bench.objectives import Objectives
    from shoal.bench.target import TargetOptions
    from shoal.bench.workload import WorkloadOptions

_LOAD, _SHAPE, _TRACE = "Load", "Lengths and prompts", "Traces"
_TARGET, _GOAL, _OUT, _FLOOR = "Endpoint", "Objectives", "Output", "Physical floors"


class UsageError(ValueError):
    """An option that can't be read: names it, its value and what is accepted."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to talk to an endpoint."""

    model: Annotated[
        str | None, typer.Option(help="Model name; default: the first listed.", rich_help_panel=_TARGET)
    ] = None
    api: Annotated[str, typer.Option(help="completions or chat.", rich_help_panel=_TARGET)] = "completions"
    prompt: Annotated[
        str,
        typer.Option(help="ids (exact length), text, or auto: ids where taken.", rich_help_panel=_TARGET),
    ] = "auto"
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["SHOAL_API_KEY", "OPENAI_API_KEY"],
            show_envvar=True,
            help="Better given by the environment.",
            rich_help_panel=_TARGET,
        ),
    ] = None
    extra_body: Annotated[
        str | None, typer.Option(help="JSON fields for every request: '{\"top_k\": 1}'.", rich_help_panel=_TARGET)
    ] = None
    ignore_eos: Annotated[bool, typer.Option(help="Pin the length of answers.", rich_help_panel=_TARGET)] = True
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.", rich_help_panel=_TARGET)] = 0.0

    def target(self, url: str, model: str | None = None, extra: str | None = None) -> "TargetOptions":
        from shoal.bench.target import TargetOptions

        _one_of("api", self.api, ("completions", "chat"))
        _one_of("prompt", self.prompt, ("auto", "ids", "text"))
        body = _json_object("extra-body", self.extra_body) | _json_object("extra-body", extra)
        return TargetOptions(
            url,
            model or self.model,
            self.api,  # type: ignore[arg-type]
            self.prompt,  # type: ignore[arg-type]
            self.api_key,
            tuple(body.items()),
            self.ignore_eos,
            self.temperature,
        )


@dataclass(frozen=True, slots=True)
class LengthsOf:
    """How prompts and answers look."""

    input: Annotated[
        str,
        typer.Option(
            "--input",
            help="Prompt tokens: 128, uniform:64:256, normal:128:20, lognormal:128:64, +:min=8:max=512.",
            rich_help_panel=_SHAPE,
        ),
    ] = "128"
    output: Annotated[str, typer.Option("--output", help="Answer tokens, likewise.", rich_help_panel=_SHAPE)] = (
        "128"
    )
    turns: Annotated[
        str, typer.Option(help="Turns of a conversation, likewise; each adds --input.", rich_help_panel=_SHAPE)
    ] = "1"
    think: Annotated[
        float, typer.Option(min=0, help="Mean seconds between turns, exponential.", rich_help_panel=_SHAPE)
    ] = 0.0
    shared: Annotated[
        int,
        typer.Option(
            "--shared-prefix", min=0, help="Tokens that prompts of a group begin with.", rich_help_panel=_SHAPE
        ),
    ] = 0
    groups: Annotated[int, typer.Option(min=1, help="Different shared prefixes.", rich_help_panel=_SHAPE)] = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """A production trace instead of made-up requests."""

    trace: Annotated[Path | None, typer.Option(help="Azure .csv or Mooncake .jsonl.", rich_help_panel=_TRACE)] = (
        None
    )
    speed: Annotated[float, typer.Option(help="Times as fast as recorded.", rich_help_panel=_TRACE)] = 1.0
    trace_start: Annotated[
        float, typer.Option(min=0, help="Seconds of the trace to skip.", rich_help_panel=_TRACE)
    ] = 0.0
    length_scale: Annotated[
        float, typer.Option(help="Multiplies lengths; sharing is kept.", rich_help_panel=_TRACE)
    ] = 1.0
    max_input: Annotated[
        int | None, typer.Option(min=1, help="Longer prompts are cut.", rich_help_panel=_TRACE)
    ] = None
    max_output: Annotated[int | None, typer.Option(min=1, help="Longer answers too.", rich_help_panel=_TRACE)] = (
        None
    )


@dataclass(frozen=True, slots=True)
class Amount:
    """How many requests, for how long."""

    requests: Annotated[
        int | None, typer.Option("--requests", "-n", min=1, help="Measured requests.", rich_help_panel=_LOAD)
    ] = None
    duration: Annotated[
        float | None, typer.Option(help="Seconds of load, instead of --requests or as well.", rich_help_panel=_LOAD)
    ] = None
    arrival: Annotated[str, typer.Option(help="poisson, gamma, constant or burst.", rich_help_panel=_LOAD)] = (
        "poisson"
    )
    cv: Annotated[float, typer.Option(help="Burstiness of gamma; 1 is Poisson.", rich_help_panel=_LOAD)] = 1.0
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Requests before the window opens.", rich_help_panel=_LOAD)
    ] = None
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", rich_help_panel=_LOAD)] = 600.0
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same load.", rich_help_panel=_LOAD)] = 0
    salt: Annotated[
        str | None,
        typer.Option(help="Changes the prompts' contents only; default: new each time.", rich_help_panel=_LOAD),
    ] = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Open loop or closed."""

    rate: Annotated[float | None, typer.Option(help="Open loop: sessions per second.", rich_help_panel=_LOAD)] = (
        None
    )
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Closed loop: requests in flight.", rich_help_panel=_LOAD),
    ] = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What a request has to meet."""

    ttft: Annotated[float | None, typer.Option(help="Milliseconds to the first token.", rich_help_panel=_GOAL)] = (
        None
    )
    tpot: Annotated[float | None, typer.Option(help="Milliseconds per further token.", rich_help_panel=_GOAL)] = (
        None
    )
    e2e: Annotated[float | None, typer.Option(help="Milliseconds to the last token.", rich_help_panel=_GOAL)] = None
    attain: Annotated[
        float, typer.Option(help="Percent of requests that must meet all of them.", rich_help_panel=_GOAL)
    ] = 99.0

    def objectives(self) -> "Objectives":
        from shoal.bench.objectives import Objectives

        ttft, tpot, e2e = (None if ms is None else ms / 1e3 for ms in (self.ttft, self.tpot, self.e2e))
        return Objectives(ttft, tpot, e2e, self.attain / 100)


@dataclass(frozen=True, slots=True)
class Floor:
    """What the endpoint runs on, to catch impossible figures."""

    floor_model: Annotated[
        str | None, typer.Option(help="Catalogued model, config.json or GGUF file.", rich_help_panel=_FLOOR)
    ] = None
    gpu: Annotated[str | None, typer.Option(help="Catalogued accelerator.", rich_help_panel=_FLOOR)] = None
    devices: Annotated[int, typer.Option(min=1, help="Devices of a replica.", rich_help_panel=_FLOOR)] = 1
    replicas: Annotated[int, typer.Option(min=1, help="Replicas behind the URL.", rich_help_panel=_FLOOR)] = 1
    bandwidth: Annotated[
        str | None, typer.Option(help='A device\'s, over the catalogue: "40 GB/s".', rich_help_panel=_FLOOR)
    ] = None
    weights: Annotated[
        str | None, typer.Option(help="How weights are stored: bf16, fp8, …", rich_help_panel=_FLOOR)
    ] = None

    def hardware(self) -> "HardwareOptions":
        from shoal.bench.checks import HardwareOptions

        return HardwareOptions(
            self.floor_model, self.gpu, self.devices, self.replicas, self.bandwidth, self.weights
        )


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go, besides the terminal."""

    json_file: Annotated[
        Path | None, typer.Option("--json", help="Figures; - for standard output.", rich_help_panel=_OUT)
    ] = None
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Every request.", rich_help_panel=_OUT)] = None
    html_file: Annotated[Path | None, typer.Option("--html", help="One page with plots.", rich_help_panel=_OUT)] = (
        None
    )


def workload_of(
    lengths: LengthsOf, trace: Trace, amount: Amount, pace: Pace | None = None, salt: str = ""
) -> "WorkloadOptions":
    """The bench's own description of a load."""
    from shoal.bench.workload import WorkloadOptions

    return WorkloadOptions(
        input=lengths.input,
        output=lengths.output,
        turns=lengths.turns,
        think=lengths.think,
        shared=lengths.shared,
        groups=lengths.groups,
        trace=trace.trace,
        speed=trace.speed,
        trace_start=trace.trace_start,
        length_scale=trace.length_scale,
        max_input=trace.max_input,
        max_output=trace.max_output,
        requests=amount.requests,
        duration=amount.duration,
        arrival=amount.arrival,
        cv=amount.cv,
        rate=pace.rate if pace else None,
        concurrency=pace.concurrency if pace else None,
        warmup=amount.warmup,
        deadline=amount.timeout,
        seed=amount.seed,
        salt=salt,
    )


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take option groups (dataclasses above) as parameters: typer sees their fields instead."""
    hints = get_type_hints(function, include_extras=True)
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], tuple[str, ...]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if not hasattr(kind, "__dataclass_fields__"):
            plain.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        own = get_type_hints(kind, include_extras=True)
        groups[parameter.name] = (kind, tuple(f.name for f in fields(kind)))
        for f in fields(kind):
            assert f.default is not MISSING
            plain.append(
                inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=own[f.name])
            )

    def command(**values: Any) -> None:
        built = {
            name: kind(**{field: values.pop(field) for field in names}) for name, (kind, names) in groups.items()
        }
        function(**values, **built)

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in plain}
    return command


_SECRET = "--api-key"


def reproduction(arguments: Sequence[str], seed: int) -> str:
    """The command line as typed, with the seed said and no key in it."""
    shown: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument.startswith(_SECRET + "="):
            skip = False
            continue
        if argument == _SECRET:
            skip = True
            continue
        shown.append(argument)
    if not any(a == "--seed" or a.startswith("--seed=") for a in shown):
        shown += ["--seed", str(seed)]
    key = "SHOAL_API_KEY=… " if os.environ.get("SHOAL_API_KEY") or len(shown) < len(arguments) else ""
    return f"{key}{shlex.join(['shoal', *shown])}"


def _one_of(name: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise UsageError(f"--{name} {value!r} is not accepted; expected one of {', '.join(accepted)}")


def _json_object(name: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--{name} {text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"--{name} {text!r} is not accepted; expected a JSON object")
    return value
