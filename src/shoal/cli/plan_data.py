"""`shoal plan score` and `shoal plan calibrate`: predictions against measurements, and constants from them.

`attach` adds both to a typer app.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.plan.deployment import Deployment
    from shoal.plan.estimator import ServingEstimator

Rows = Annotated[Path, typer.Argument(help="CSV of measured rows (aiconfigurator's silicon schema).")]
ConstantsFile = Annotated[Path | None, typer.Option(help="Constants written by `shoal plan calibrate`.")]


def score(
    rows: Rows,
    as_json: Annotated[bool, typer.Option("--json", help="Print errors and coverage as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--csv", help="Write every row's prediction here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot predicted against measured here (PNG, SVG).")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the scorecard here.")] = None,
    constants: ConstantsFile = None,
) -> None:
    """Predict every measured row and print the errors and the coverage of the 90 % intervals."""
    from shoal.plan.lookup import catalog_accelerators, catalog_models
    from shoal.plan.rows import read_rows
    from shoal.plan.score import score_rows, write_csv, write_plot
    from shoal.plan.scorecard import scorecard, table
    from shoal.specs.errors import SpecError

    estimator = _estimator(constants)
    found = score_rows(read_rows(rows, catalog_models(), catalog_accelerators()), estimator)
    if out is not None:
        try:
            with out.open("w", newline="", encoding="utf-8") as handle:
                write_csv(found, handle)
        except OSError as error:
            raise SpecError("csv", str(out), f"a path that can be written ({error.strerror})") from None
    if plot is not None:
        write_plot(found, plot)
    if markdown is not None:
        try:
            markdown.write_text(scorecard(found, estimator, rows.name), encoding="utf-8")
        except OSError as error:
            raise SpecError("markdown", str(markdown), f"a path that can be written ({error.strerror})") from None
    print(json.dumps(found.as_dict(), indent=2) if as_json else table(found))


def calibrate(
    measurements: Annotated[
        list[Path],
        typer.Argument(
            help="A CSV of measured rows; or JSON of shoal bench, vllm bench, guidellm or aiperf, or a vLLM"
            " log: one or several of one deployment."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write the constants.")],
    model: Annotated[
        str | None, typer.Option(help="Model that a log or report measured: a name, a directory, a GGUF file.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Accelerator that it ran on.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Engine that served it. Default: vllm; shoal on a processor.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="bf16, fp32, fp8, int8, fp4 or int4. Default: as the model is published.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert groups.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Attention data-parallel degree.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas behind the endpoint.")] = 1,
    input_tokens: Annotated[float, typer.Option(help="Mean prompt length, where the file does not say.")] = 1024.0,
    output_tokens: Annotated[float, typer.Option(help="Mean output length, where the file does not say.")] = 256.0,
    constants: ConstantsFile = None,
) -> None:
    """Refit every constant to measured rows (CSV), or fit one machine to logs or reports of your own.

    `shoal plan MODEL --constants FILE` then plans with them.
    """
    from shoal.plan.artifact import write_artifact
    from shoal.plan.calibrate import calibrate_rows, factor_text, rescale
    from shoal.plan.lookup import catalog_accelerators, catalog_models
    from shoal.plan.readers import read_observations

    if len(measurements) == 1 and measurements[0].suffix.lower() == ".csv":
        artifact = calibrate_rows(measurements[0], catalog_models(), catalog_accelerators())
        _write(write_artifact, artifact, out)
        for name, slices in artifact.quality.items():
            quality = slices["all"]
            print(
                f"{name} left out: TPOT median {quality.tpot_median:.1%}, in interval"
                f" {quality.tpot_coverage:.1%}; TTFT median {quality.ttft_median:.1%}, in interval"
                f" {quality.ttft_coverage:.1%}"
            )
        return
    template = _template(model, gpu, backend, precision, (tp, ep, dp, pp, replicas), (input_tokens, output_tokens))
    observations = [observation for path in measurements for observation in read_observations(path)]
    found = rescale(_estimator(constants).artifact, template, observations)
    _write(write_artifact, found.artifact, out)
    what = f"{template.model.name} ({template.precision})"
    print(f"{found.observations} observations of {what} under {template.backend} on {template.accelerator.name}")
    print(f"TPOT: {factor_text(found.tpot_factor)}; residual then {found.tpot_residual:.1%} (median)")
    if found.ttft_factor is not None:
        print(f"TTFT: {factor_text(found.ttft_factor)}; residual then {found.ttft_residual:.1%} (median)")
    print(f"written to {out}; plan with it: shoal plan {model} --gpu {gpu} --constants {out}")


def attach(app: typer.Typer) -> None:
    """Add `score` and `calibrate` to an app."""
    app.command()(score)
    app.command()(calibrate)


def _estimator(constants: Path | None) -> "ServingEstimator":
    from shoal.plan.artifact import read_artifact
    from shoal.plan.estimator import ServingEstimator

    return ServingEstimator(None if constants is None else read_artifact(constants))


def _write(write: object, artifact: object, out: Path) -> None:
    from shoal.specs.errors import SpecError

    assert callable(write)
    try:
        write(artifact, out)
    except OSError as error:
        raise SpecError("out", str(out), f"a path that can be written ({error.strerror})") from None


def _template(
    model: str | None,
    gpu: str | None,
    backend: str | None,
    precision: str | None,
    degrees: tuple[int, int, int, int, int],
    lengths: tuple[float, float],
) -> "Deployment":
    from shoal.plan.api import find_model
    from shoal.plan.deployment import Deployment, Pool
    from shoal.plan.lookup import catalog_models
    from shoal.plan.question import CPU_ENGINE, is_processor, published_option
    from shoal.plan.work import model_work
    from shoal.specs.catalog import load_catalog
    from shoal.specs.errors import SpecError, UnknownModel
    from shoal.specs.layout import Layout

    if model is None or gpu is None:
        missing = "model" if model is None else "gpu"
        raise SpecError(missing, None, f"--{missing}: a log or report does not say what it measured")
    tp, ep, dp, pp, replicas = degrees
    accelerator = load_catalog().accelerator(gpu)
    try:
        spec = find_model(model)
        work, published = model_work(spec), published_option(spec).precision
    except UnknownModel:
        work, published = catalog_models()(model), "bf16"
    engine = backend or (CPU_ENGINE if is_processor(accelerator) else "vllm")
    pool = Pool(Layout(tp=tp, ep=ep, dp=dp, pp=pp), replicas)
    return Deployment(work, accelerator, precision or published, engine, pool, *lengths, 1.0)
