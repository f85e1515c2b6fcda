"""`shoal plan MODEL`: a sized, priced, explained deployment; `score` and `calibrate` beside it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.plan_data import attach
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.plan.asked import Asked
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


def _text(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, metavar="TEXT", show_default=False)


@app.command(_DEFAULT, epilog="Further commands: shoal plan score ROWS, shoal plan calibrate MEASUREMENTS.")
def plan_model(
    model: Annotated[
        str | None,
        typer.Argument(help="A catalogued model, a Hugging Face id, or a directory, config.json or GGUF file."),
    ] = None,
    model_option: Annotated[str | None, typer.Option("--model", help="The same, as an option.")] = None,
    gpu: Annotated[
        list[str] | None,
        _text(
            "--gpu", "--gpus", help="Accelerators, counted or not: h100,h200; 8xh100; 8; a cluster. Default: all."
        ),
    ] = None,
    users: Annotated[str | None, _text("--users", help="Requests in flight at the peak: 200, 8,192, 10k.")] = None,
    rate: Annotated[
        str | None, _text("--rate", "--rps", help="Requests at the peak, instead or as well: 5/s, 300/min.")
    ] = None,
    context: Annotated[
        str | None,
        _text(
            "--context", help="Tokens a user holds: 8k (8192); beside --input and --output: of the longest request."
        ),
    ] = None,
    input_tokens: Annotated[str | None, _text("--input", "--isl", help="Mean prompt in tokens: 4000, 8k.")] = None,
    output_tokens: Annotated[str | None, _text("--output", "--osl", help="Mean answer in tokens.")] = None,
    ttft: Annotated[str | None, _text("--ttft", help="Time to first token: 2s, 800ms, none. Default: 5s.")] = None,
    tpot: Annotated[
        str | None, _text("--tpot", "--itl", help="Time per output token: 50ms, none. Default: 50ms.")
    ] = None,
    percentile: Annotated[
        str | None,
        _text("--percentile", help="Percentile of requests that must meet the targets: p95. Default: p50."),
    ] = None,
    prefix_hit: Annotated[
        str | None, _text("--prefix-hit", help="Share of input tokens in the prefix cache: 50%, 0.5. Default: 0.")
    ] = None,
    peak_to_mean: Annotated[
        str | None, _text("--peak-to-mean", help="Peak traffic over mean traffic: 3. Default: 1.")
    ] = None,
    headroom: Annotated[
        str | None, _text("--headroom", help="Share of a replica kept free at the peak. Default: 10%.")
    ] = None,
    spares: Annotated[
        str | None, _text("--spares", help="Replicas that may fail at the peak (1: N+1). Default: 0.")
    ] = None,
    max_devices: Annotated[str | None, _text("--max-devices", help="Devices that there are.")] = None,
    engine: Annotated[str | None, _text("--engine", help="vllm (default), sglang, trtllm or shoal.")] = None,
    engine_version: Annotated[
        str | None,
        _text("--engine-version", help="What it can do, its memory, what is emitted. Default: the newest known."),
    ] = None,
    memory_utilization: Annotated[
        str | None,
        _text(
            "--memory-utilization", "--gpu-memory-utilization", help="Its memory fraction: 90%. Default: its own."
        ),
    ] = None,
    max_num_seqs: Annotated[
        str | None, _text("--max-num-seqs", help="Most sequences that the engine may be told to run at once.")
    ] = None,
    weights: Annotated[
        list[str] | None,
        _text("--weights", "--quantization", help="Ways to store weights: checkpoint, fp8, w4a16, nvfp4, …"),
    ] = None,
    kv_dtype: Annotated[
        list[str] | None, _text("--kv-dtype", "--kv-cache-dtype", help="Ways to store the cache: bf16, fp8_e4m3.")
    ] = None,
    split: Annotated[
        str | None, _text("--split", help="Prefill and decode in pools of their own: auto, never or only.")
    ] = None,
    prices: Annotated[str | None, _text("--prices", help="owned (default) or rented.")] = None,
    rented: Annotated[bool, typer.Option("--rented", help="--prices rented.")] = False,
    sized_for: Annotated[
        str | None, _text("--sized-for", help="mean (default), or high: the upper end of the intervals.")
    ] = None,
    sure: Annotated[bool, typer.Option("--sure", help="--sized-for high.")] = False,
    layout: Annotated[
        list[str] | None,
        _text(
            "--layout", help="Evaluate this design instead of searching: tp=8, or tp=4,pp=2 x2; repeat to compare."
        ),
    ] = None,
    growth: Annotated[
        str | None, _text("--growth", help="Users by month: 15%/month, or a list: '100; 150; 200'.")
    ] = None,
    months: Annotated[str | None, _text("--months", help="Months that growth is planned for. Default: 12.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A question as YAML, the options' names as fields; options typed win."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            "--log",
            help="Lengths, peak and prefix reuse from a trace or log (.csv, .jsonl), where not given.",
        ),
    ] = None,
    catalog: Annotated[list[Path] | None, typer.Option(help="A catalogue file of your own; repeatable.")] = None,
    constants: Annotated[
        Path | None, typer.Option(help="Constants of the time model, written by `shoal plan calibrate`.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Designs to show.")] = 8,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what would change the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained report here.")] = None,
    emit: Emit = None,
    serve_model: Annotated[
        str | None, typer.Option(help="With --emit: the checkpoint that engines load, where it isn't MODEL's own.")
    ] = None,
) -> None:
    """Size, price and explain a deployment of MODEL. Users default to 1, targets to 5 s TTFT and 50 ms TPOT.

    Numbers are written as people write them: 8k, 10k, 70b, 8,192, 50%, p95, 5s, 5/s. Times need their unit.
    """
    from shoal.cli.question import asked_of_options, read_question
    from shoal.plan.search import search

    if emit is not None:
        from shoal.plan.emit import check_target

        check_target(emit)
    asked = asked_of_options(
        model=model, model_option=model_option, gpu=gpu, users=users, rate=rate, context=context,
        input=input_tokens, output=output_tokens, ttft=ttft, tpot=tpot, percentile=percentile,
        prefix_hit=prefix_hit, peak_to_mean=peak_to_mean, headroom=headroom, spares=spares, max_devices=max_devices,
        engine=engine, engine_version=engine_version, memory_utilization=memory_utilization,
        max_num_seqs=max_num_seqs, weights=weights, kv_dtype=kv_dtype, split=split,
        prices="rented" if rented else prices, sized_for="high" if sure else sized_for,
        layout="; ".join(layout) if layout else None, growth=growth, months=months,
    )  # fmt: skip
    asked_file = None
    if file is not None:
        from shoal.plan.question_file import read_question_file, with_defaults

        asked_file = read_question_file(file)
        if asked_file.models:
            from shoal.cli.plan_fleet import answer_fleet

            _refuse_for_fleets({"--trace": trace, "--html": html, "--constants": constants})
            answer_fleet(asked_file, asked, catalog or (), _engine_of(emit), as_json, emit)
            return
        asked = with_defaults(asked, asked_file.question.asked)
    if trace is not None:
        asked = _traced(asked, trace, as_json)
    read = read_question(asked, catalog or (), _engine_of(emit), asked_file)
    if constants is not None:
        from shoal.plan.artifact import read_artifact

        read = replace(read, question=replace(read.question, constants=read_artifact(constants)))
    if read.growth is not None:
        from shoal.cli.plan_growth import answer_growth

        answer_growth(read, as_json, emit, asked.model or "", serve_model)
        return
    if read.layouts or read.inverse:
        from shoal.cli.plan_given import answer_inverse, answer_layouts

        (answer_layouts if read.layouts else answer_inverse)(read, quick, as_json)
        return
    _answer(search(read.question), asked.model or "", top, quick, as_json, html, emit, serve_model)


def _engine_of(emit: str | None) -> str:
    """The engine to plan for where none is named: that of the commands to print."""
    return emit if emit is not None and emit not in ("k8s", "shoal") else "vllm"


def _refuse_for_fleets(options: dict[str, Path | None]) -> None:
    for name, value in options.items():
        if value is not None:
            raise SpecError(name, str(value), "nothing: it is for a question of one model")


def _traced(asked: "Asked", trace: Path, quiet: bool) -> "Asked":
    from shoal.plan.readers.trace import read_trace
    from shoal.plan.traced import summarize, trace_lines, with_trace

    found = summarize(read_trace(trace))
    if not quiet:
        for line in trace_lines(found, trace.name):
            typer.echo(line)
        typer.echo()
    return with_trace(asked, found)


def _answer(
    plan: "Plan", model: str, top: int, quick: bool, as_json: bool, html: Path | None, emit: str | None,
    serve_model: str | None,
) -> None:  # fmt: skip
    from shoal.plan.explain import explain
    from shoal.plan.report import html_report, plan_data

    if emit is not None and plan.best is not None:
        from shoal.plan.emit import emit as emit_text

        typer.echo(emit_text(plan, emit, model, serve_model=serve_model))
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


attach(app)
