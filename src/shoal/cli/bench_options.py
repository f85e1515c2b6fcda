"""The options of `shoal bench`, in groups that its commands share, and the decorator that hands them out."""

import inspect
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer

if TYPE_CHECKING:
    from shoal.bench.checks import HardwareOptions
    from shoal.bench.target import TargetOptions
    from shoal.workload.objectives import Objectives
    from shoal.workload.options import WorkloadOptions


class UsageError(ValueError):
    """An option that can't be read: names it, its value and what is accepted."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to talk to an endpoint."""

    PANEL: ClassVar = "Endpoint"

    model: Annotated[str | None, typer.Option(help="Model name; default: the first listed.")] = None
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions"
    prompt: Annotated[str, typer.Option(help="ids (exact length), text, or auto: ids where taken.")] = "auto"
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["SHOAL_API_KEY", "OPENAI_API_KEY"], show_envvar=True, help="Better given by the environment."
        ),
    ] = None
    extra_body: Annotated[str | None, typer.Option(help="JSON fields for every request: '{\"top_k\": 1}'.")] = None
    ignore_eos: Annotated[bool, typer.Option(help="Pin the length of answers.")] = True
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0

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

    PANEL: ClassVar = "Lengths and prompts"

    input: Annotated[
        str,
        typer.Option(
            "--input", help="Prompt tokens: 128, uniform:64:256, normal:128:20, lognormal:128:64, +:min=8:max=512."
        ),
    ] = "128"
    output: Annotated[str, typer.Option("--output", help="Answer tokens, likewise.")] = "128"
    turns: Annotated[str, typer.Option(help="Turns of a conversation, likewise; each adds --input.")] = "1"
    think: Annotated[float, typer.Option(min=0, help="Mean seconds between turns, exponential.")] = 0.0
    shared: Annotated[
        int, typer.Option("--shared-prefix", min=0, help="Tokens that prompts of a group begin with.")
    ] = 0
    groups: Annotated[int, typer.Option(min=1, help="Different shared prefixes.")] = 1
    models: Annotated[str | None, typer.Option(help="Models that sessions ask for, with shares: a=3,b=1.")] = None
    priorities: Annotated[
        str | None, typer.Option(help="Their priorities, likewise: 0=0.9,-1=0.1; lower is served first.")
    ] = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A production trace instead of made-up requests."""

    PANEL: ClassVar = "Traces"

    trace: Annotated[Path | None, typer.Option(help="Azure .csv, Mooncake or agentic .jsonl.")] = None
    speed: Annotated[float, typer.Option(help="Times as fast as recorded.")] = 1.0
    trace_start: Annotated[float, typer.Option(min=0, help="Seconds of the trace to skip.")] = 0.0
    length_scale: Annotated[float, typer.Option(help="Multiplies lengths; sharing is kept.")] = 1.0
    max_input: Annotated[int | None, typer.Option(min=1, help="Longer prompts are cut.")] = None
    max_output: Annotated[int | None, typer.Option(min=1, help="Longer answers too.")] = None
    trace_models: Annotated[bool, typer.Option(help="Ask for the model that each line names.")] = False


@dataclass(frozen=True, slots=True)
class Amount:
    """How many requests, for how long."""

    PANEL: ClassVar = "Load"

    requests: Annotated[int | None, typer.Option("--requests", "-n", min=1, help="Measured requests.")] = None
    duration: Annotated[float | None, typer.Option(help="Seconds of load, instead of --requests or as well.")] = (
        None
    )
    arrival: Annotated[str, typer.Option(help="poisson, gamma, constant or burst.")] = "poisson"
    cv: Annotated[float, typer.Option(help="Burstiness of gamma; 1 is Poisson.")] = 1.0
    curve: Annotated[
        str | None, typer.Option(help="Relative rate by hour of day: 0=0.2,9=1,14=1.3,22=0.4; --rate is the mean.")
    ] = None
    curve_start: Annotated[float, typer.Option(min=0, help="Hour of the day at which it begins.")] = 0.0
    day_seconds: Annotated[float, typer.Option(help="Seconds that a day of the curve takes.")] = 86_400.0
    warmup: Annotated[int | None, typer.Option(min=0, help="Requests before the window opens.")] = None
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same load.")] = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """What prompts say."""

    PANEL: ClassVar = "Load"

    salt: Annotated[
        str | None, typer.Option(help="Changes the prompts' contents only; default: new each time.")
    ] = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Open loop or closed."""

    PANEL: ClassVar = "Load"

    rate: Annotated[float | None, typer.Option(help="Open loop: sessions per second.")] = None
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Closed loop: requests in flight.")
    ] = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What a request has to meet."""

    PANEL: ClassVar = "Objectives"

    ttft: Annotated[float | None, typer.Option(help="Milliseconds to the first token.")] = None
    tpot: Annotated[float | None, typer.Option(help="Milliseconds per further token.")] = None
    e2e: Annotated[float | None, typer.Option(help="Milliseconds to the last token.")] = None
    attain: Annotated[float, typer.Option(help="Percent of requests that must meet all of them.")] = 99.0

    def objectives(self) -> "Objectives":
        from shoal.workload.objectives import Objectives

        ttft, tpot, e2e = (None if ms is None else ms / 1e3 for ms in (self.ttft, self.tpot, self.e2e))
        return Objectives(ttft, tpot, e2e, self.attain / 100)


@dataclass(frozen=True, slots=True)
class Floor:
    """What the endpoint runs on, to catch impossible figures."""

    PANEL: ClassVar = "Physical floors"

    floor_model: Annotated[str | None, typer.Option(help="Catalogued model, config.json or GGUF file.")] = None
    gpu: Annotated[str | None, typer.Option(help="Catalogued accelerator.")] = None
    devices: Annotated[int, typer.Option(min=1, help="Devices of a replica.")] = 1
    replicas: Annotated[int, typer.Option(min=1, help="Replicas behind the URL.")] = 1
    bandwidth: Annotated[str | None, typer.Option(help='A device\'s, over the catalogue: "40 GB/s".')] = None
    weights: Annotated[str | None, typer.Option(help="How weights are stored: bf16, fp8, …")] = None

    def hardware(self) -> "HardwareOptions":
        from shoal.bench.checks import HardwareOptions

        return HardwareOptions(
            self.floor_model, self.gpu, self.devices, self.replicas, self.bandwidth, self.weights
        )


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go, besides the terminal."""

    PANEL: ClassVar = "Output"

    json_file: Annotated[Path | None, typer.Option("--json", help="Figures; - for standard output.")] = None
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Every request.")] = None
    jsonl_file: Annotated[Path | None, typer.Option("--jsonl", help="Likewise, as JSON lines.")] = None
    html_file: Annotated[Path | None, typer.Option("--html", help="One page with plots.")] = None


def workload_of(
    lengths: LengthsOf, trace: Trace, amount: Amount, pace: Pace | None = None, salt: str = ""
) -> "WorkloadOptions":
    """Return the bench's own description of a load: its fields have the names of the options."""
    from shoal.workload.options import WorkloadOptions

    groups = (lengths, trace, amount, pace or Pace())
    given = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    return WorkloadOptions(deadline=given.pop("timeout"), **(given | {"salt": salt}))


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
            # Of the group, so that it isn't said with every option.
            next(iter(own[f.name].__metadata__)).rich_help_panel = kind.PANEL
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
