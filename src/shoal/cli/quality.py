"""`shoal quality MODEL --quantize int8`: what fewer bits do to a model's answers, and whether that will do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from shoal.cli.console import stdout_console
from shoal.cli.options import options_of, struct_of
from shoal.engine.options import EngineOptions

if TYPE_CHECKING:
    from shoal.engine.quality import Quality

_OPTIONS = ("dtype", "kv_dtype", "quantize", "threads", "cache_dir", "offline")


@options_of(EngineOptions, only=_OPTIONS)
def quality(
    model: Annotated[
        str, typer.Argument(help="Catalog name, directory, GGUF file, hub id or object-store URL.")
    ] = "smollm2-135m",
    text: Annotated[
        Path | None,
        typer.Option(help="UTF-8 text to measure on, an empty line between passages; default: built-in prose."),
    ] = None,
    length: Annotated[int, typer.Option(min=8, help="Tokens of a prompt.")] = 128,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts at most; default: all that the text gives.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Prompts to show, those that changed most.")] = 3,
    max_perplexity_increase: Annotated[
        float | None, typer.Option(min=0, help="Percent; more fails (exit code 1).")
    ] = None,
    max_kl: Annotated[float | None, typer.Option(min=0, help="Mean KL in nats; more fails.")] = None,
    max_kl_p99: Annotated[float | None, typer.Option(min=0, help="Its 99th percentile; more fails.")] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Percent of positions whose likeliest token stays; less fails."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    **options: Any,
) -> None:
    """Compare a quantized model's output distributions with the full-precision model's, over many prompts."""
    import msgspec
    import torch

    from shoal.engine.machine import usable_cores
    from shoal.engine.quality import Bounds, measure, passages

    engine = struct_of(EngineOptions, options, model=model)
    engine.validate()
    torch.set_num_threads(engine.threads or usable_cores())
    texts = passages() if text is None else _read(text)
    console = Console(highlight=False, stderr=True)
    with console.status(f"Loading {model} …") as status:
        found = measure(
            engine, texts, length, prompts, lambda done: status.update(f"{done} prompts of {length} tokens")
        )
    bounds = Bounds(
        perplexity_increase=_share(max_perplexity_increase),
        kl_mean=max_kl,
        kl_p99=max_kl_p99,
        agreement=_share(min_agreement),
    )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        show(found, worst)
    broken = bounds.broken(found)
    for line in broken:
        typer.echo(f"not good enough: {line}", err=True)
    if broken:
        raise typer.Exit(1)


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _read(path: Path) -> tuple[str, ...]:
    from shoal.engine.errors import InvalidOption

    try:
        raw = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("text", str(path), f"a readable UTF-8 file ({error})") from None
    return tuple(part.strip() for part in raw.split("\n\n") if part.strip())


def show(found: Quality, worst: int) -> None:
    """A table of the figures, and the prompts that changed most."""
    console = stdout_console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("positions", f"{found.positions:,} in {len(found.windows)} prompts")
    change = f"{found.perplexity_increase:+.2%}"
    table.add_row(
        "perplexity", f"{found.perplexity:.3f}, full precision {found.reference_perplexity:.3f} ({change})"
    )
    table.add_row(
        "KL (nats)",
        f"mean {found.kl_mean:.5f}, median {found.kl_p50:.5f}, p99 {found.kl_p99:.5f}, max {found.kl_max:.5f}",
    )
    table.add_row("greedy agreement", f"{found.agreement:.2%}")
    console.print(table)
    if not worst:
        return
    console.print("\nprompts that changed most", style="bold")
    for window in found.worst(worst):
        console.print(
            f"  KL mean {window.kl_mean:.5f}, max {window.kl_max:.5f}; perplexity {window.perplexity:.2f}, "
            f"full precision {window.reference_perplexity:.2f}; agreement {window.agreement:.1%}"
        )
        console.print(f"    {window.text}", style="dim", markup=False)
