"""`shoal plan MODEL`: a sized, priced, explained deployment; `score` and `calibrate` beside it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.cli.plan_data import attach
from shoal.specs.errors import SpecError
from shoal.specs.units import parse_count, parse_quantity, parse_tokens

if TYPE_CHECKING:
    from shoal.plan.designs import Plan

NO_PLAN = 1
_DEFAULT = "model"


class _ModelFirst(typer.core.TyperGroup):
    """`shoal plan llama-3.1-70b …` is `shoal plan model llama-3.1-70b …`: what is no subcommand is a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            # `--help` too: the page that people want is that of planning.
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ModelFirst,
    add_completion=False,
    no_args_is_help=True,
    help="Plan a deployment (shoal plan MODEL), score predictions, calibrate them.",
)

Emit = Annotated[
    str | None,
    typer.Option(help="Print commands or files of the plan for vllm, sglang, trtllm, shoal or k8s instead."),
]


@app.command(_DEFAULT, epilog="Further commands: shoal plan score ROWS, shoal plan calibrate MEASUREMENTS.")
def plan_model(
    model: Annotated[str, typer.Argument(help="A catalogued model, or a directory, config.json or GGUF file.")],
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="Accelerators to consider; repeat, or separate by commas. Default: all."),
    ] = None,
    users: Annotated[str | None, typer.Option(help="Requests in flight at the peak, e.g. 200 or 10K.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second at the peak, instead or as well.")] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Tokens a user holds, e.g. 8K (8192); beside --input and --output: of the longest request."
        ),
    ] = None,
    input_tokens: Annotated[str | None, typer.Option("--input", help="Mean prompt, tokens.")] = None,
    output_tokens: Annotated[str | None, typer.Option("--output", help="Mean answer, tokens.")] = None,
    ttft: Annotated[str, typer.Option(help='Time to first token: "2s", "800ms" (bare: ms), or none.')] = "5s",
    tpot: Annotated[str, typer.Option(help='Time per output token: "50ms" (bare: ms), or none.')] = "50ms",
    percentile: Annotated[float, typer.Option(help="Percentile of requests that must meet the targets.")] = 50.0,
    prefix_hit: Annotated[float, typer.Option(help="Share of input tokens found in the prefix cache.")] = 0.0,
    peak_to_mean: Annotated[float, typer.Option(help="Peak traffic over mean traffic.")] = 1.0,
    headroom: Annotated[float, typer.Option(help="Share of a replica's capacity kept free at the peak.")] = 0.1,
    spares: Annotated[int, typer.Option(help="Replicas that may fail at the peak (1: N+1).")] = 0,
    max_devices: Annotated[int | None, typer.Option(help="Devices that there are.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm (default), sglang, trtllm or shoal.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="For its memory constants; default: newest.")] = None,
    weights: Annotated[
        list[str] | None, typer.Option(help="Ways to store weights: checkpoint, bf16, fp8, int4, nvfp4, …")
    ] = None,
    kv_dtype: Annotated[
        list[str] | None, typer.Option("--kv-dtype", help="Ways to store the cache: bf16, fp8.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Prefill and decode in pools of their own: auto, never or only.")
    ] = "auto",
    rented: Annotated[bool, typer.Option(help="Use prices of renting instead of owning.")] = False,
    sure: Annotated[bool, typer.Option(help="Size for the upper end of the intervals.")] = False,
    catalog: Annotated[list[Path] | None, typer.Option(help="A catalogue file of your own; repeatable.")] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Designs to show.")] = 8,
    quick: Annotated[bool, typer.Option(help="Leave out what would change the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained report here.")] = None,
    emit: Emit = None,
) -> None:
    """Size, price and explain a deployment of MODEL. Users default to 1, targets to 5 s TTFT and 50 ms TPOT."""
    from shoal.plan.api import ask
    from shoal.plan.search import search

    if emit is not None:
        from shoal.plan.emit import check_target

        check_target(emit)
        if engine is None and emit != "k8s":
            engine = emit
    question = ask(
        model,
        gpu=_listed(gpu),
        users=None if users is None else parse_count(users, "users"),
        rate=rate,
        context=None if context is None else parse_tokens(context, "context"),
        input_tokens=None if input_tokens is None else parse_tokens(input_tokens, "input"),
        output_tokens=None if output_tokens is None else parse_tokens(output_tokens, "output"),
        ttft=seconds(ttft, "ttft"),
        tpot=seconds(tpot, "tpot"),
        percentile=percentile,
        prefix_hit=prefix_hit,
        peak_to_mean=peak_to_mean,
        headroom=headroom,
        spares=spares,
        max_devices=max_devices,
        engine=engine or "vllm",
        engine_version=engine_version,
        weights=_listed(weights),
        kv_dtypes=_listed(kv_dtype),
        split=_split(split),
        basis="rented" if rented else "owned",
        assurance="high" if sure else "mean",
        catalogs=catalog or (),
    )
    _answer(search(question), model, top, quick, as_json, html, emit)


def _answer(
    plan: "Plan", model: str, top: int, quick: bool, as_json: bool, html: Path | None, emit: str | None
) -> None:
    from shoal.plan.explain import explain
    from shoal.plan.report import html_report, plan_data

    if emit is not None and plan.best is not None:
        from shoal.plan.emit import emit as emit_text

        typer.echo(emit_text(plan, emit, model))
        return
    explanation = explain(plan, sensitivity=not quick)
    if html is not None:
        try:
            html.write_text(html_report(plan, explanation), encoding="utf-8")
        except OSError as error:
            raise SpecError("html", str(html), f"a path that can be written ({error.strerror})") from None
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(plan_data(plan, explanation, top)), indent=2).decode())
    else:
        from shoal.cli.plan_table import show_plan

        show_plan(plan, explanation, top)
        if html is not None:
            typer.echo(f"\nReport: {html}")
    if plan.best is None:
        raise typer.Exit(NO_PLAN)


def seconds(text: str, field: str) -> float | None:
    """`2s`, `800ms`, a bare number of milliseconds, or `none`."""
    cleaned = text.strip()
    if cleaned.lower() in ("none", "off", "-"):
        return None
    if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", cleaned):
        value = float(cleaned)
        if value <= 0:
            raise SpecError(field, text, "a time above zero such as 50ms, 2s or 50 (milliseconds), or none")
        return value / 1e3
    return parse_quantity(cleaned, "seconds", field)


def _listed(values: list[str] | None) -> list[str]:
    """Repeated options and comma-separated ones, flattened."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def _split(text: str) -> Literal["auto", "never", "only"]:
    known: dict[str, Literal["auto", "never", "only"]] = {"auto": "auto", "never": "never", "only": "only"}
    if text not in known:
        raise SpecError("split", text, "auto, never or only")
    return known[text]


attach(app)
