"""What the calculators' options mean: a model, a device, a KV cache; and how their answers are printed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.plan.calc import gqa_bytes_per_token, kv_bytes, weight_bytes
from shoal.plan.kv import kv_dtype_bytes, sequence_curve
from shoal.specs import sizes
from shoal.specs.catalog import load_catalog
from shoal.specs.errors import SpecError
from shoal.specs.model import ModelSpec
from shoal.specs.quantities import parse_count, parse_quantity, parse_tokens
from shoal.specs.quantization import quantization

Json = Annotated[bool, typer.Option("--json", help="Print JSON in base units (bytes, seconds, USD) instead.")]
ModelName = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A catalogued model, a Hugging Face id, or a config.json or GGUF file."),
]
Model = Annotated[str | None, typer.Option(help="The same, as an option.")]
Params = Annotated[str | None, typer.Option(help="Parameters, e.g. 70b, where there is no model.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", "--weights", help="How weights are stored: bf16, fp8, w4a16, … (as the checkpoint; else bf16)."
    ),
]
KvDtype = Annotated[
    str, typer.Option("--kv-dtype", "--kv-cache-dtype", help="How the cache is stored: bf16, fp8, …")
]
Gpu = Annotated[
    str | None, typer.Option("--gpu", "--gpus", help='A catalogued accelerator: h100, "A100 40GB", 4090.')
]
Memory = Annotated[str | None, typer.Option(help='Memory of a device, e.g. "80 GB", where there is no --gpu.')]
Context = Annotated[str, typer.Option(help="Tokens a sequence holds: 8192, 8,192, 8k (8192).")]
Users = Annotated[str, typer.Option(help="Sequences held at once: 200, 10k.")]
Catalogs = Annotated[list[Path] | None, typer.Option("--catalog", help="A catalogue file of your own; repeatable.")]
Layers = Annotated[int | None, typer.Option(help="Layers, where there is no --model.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads, where there is no --model.")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help="Width of a head, where there is no --model.")]

MemoryUtilization = Annotated[
    str | None,
    typer.Option(
        "--memory-utilization",
        "--gpu-memory-utilization",
        help="The engine's memory fraction, e.g. 90%; default: its own.",
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option("--max-num-seqs", min=1, help="Most sequences that the engine is told to run at once."),
]


def show(
    title: str,
    rows: Sequence[tuple[str, str]],
    values: dict[str, object],
    as_json: bool,
    notes: Sequence[str] = (),
) -> None:
    """Print what a calculator found: rows in a table for a reader, or values as JSON for a program."""
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    from rich.table import Table

    from shoal.cli.console import stdout_console

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    for label, value in rows:
        table.add_row(label, value)
    console = stdout_console()
    console.print(table, highlight=False, markup=False)
    for note in notes:
        console.print(f"  {note}", highlight=False, markup=False)


def model_named(name: str | None, option: str | None) -> str | None:
    """The model, given as an argument or as --model. Raises `SpecError` where both differ."""
    if name is not None and option is not None and name != option:
        raise SpecError("--model", option, f"the model once: MODEL is {name!r} already")
    return name if name is not None else option


def model_of(name: str | ModelSpec, catalogs: Sequence[Path] | None) -> ModelSpec:
    """The model at a path, of this name in the catalogue, or of this Hugging Face id; a model as it is."""
    if isinstance(name, ModelSpec):
        return name
    from shoal.cli.model_spec import model_spec

    return model_spec(name, catalogs or ())


def weights_of(
    model: str | ModelSpec | None, params: str | None, dtype: str | None, catalogs: Sequence[Path] | None
) -> tuple[str, float]:
    """(what the model is called, bytes of its weights)."""
    if model is not None and params is not None:
        raise SpecError("--params", params, "either a model or --params, not both")
    if model is not None:
        spec = model_of(model, catalogs)
        return spec.name, float(sizes.weight_bytes(spec, dtype).total)
    if params is None:
        raise SpecError("MODEL", None, "a model, or --params such as 70b")
    method = quantization(dtype or "bf16")
    return f"{params} parameters", weight_bytes(parse_count(params, "--params", "70b or 1.04T"), method.bits / 8)


def cache_of(
    model: str | ModelSpec | None,
    shape: tuple[int | None, int | None, int | None],
    kv_dtype: str,
    context: str,
    users: str,
    catalogs: Sequence[Path] | None,
) -> tuple[float, float, float]:
    """(bytes a further token adds, bytes of a sequence, bytes of all users)."""
    length, count = parse_tokens(context, "--context"), parse_count(users, "--users", "200, 8,192 or 10k")
    if model is not None:
        curve = sequence_curve(model_of(model, catalogs), kv_dtype)
        held = curve.bytes(length)
        return curve.final_rate, held, held * count
    layers, kv_heads, head_dim = shape
    for field, value in (("layers", layers), ("kv-heads", kv_heads), ("head-dim", head_dim)):
        if value is None:
            raise SpecError(f"--{field}", None, "a model, or --layers, --kv-heads and --head-dim")
    token = gqa_bytes_per_token(layers or 0, kv_heads or 0, head_dim or 0, kv_dtype_bytes(kv_dtype))
    return token, kv_bytes(token, length), kv_bytes(token, length, count)


def device_of(gpu: str | None, memory: str | None, catalogs: Sequence[Path] | None) -> tuple[str, float]:
    """(name, nominal bytes) of a device."""
    if gpu is not None:
        accelerator = load_catalog(catalogs or ()).accelerator(gpu, "--gpu")
        return accelerator.name, accelerator.memory_bytes
    if memory is None:
        raise SpecError("--gpu", None, 'an accelerator, or --memory such as "80 GB"')
    return memory, parse_quantity(memory, "bytes", "--memory")
