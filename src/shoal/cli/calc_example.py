"""The worked example of `shoal calc`: what serving a 70B chat model to 200 users takes."""

import json

import typer

from shoal.plan import calc
from shoal.specs.catalog import load_catalog
from shoal.specs.units import decimal_bytes

PARAMETERS, LAYERS, KV_HEADS, HEAD_DIM = 70e9, 80, 8, 128
CONTEXT, USERS = 8192, 200
DEVICES = ("h100_sxm", "h200_sxm", "b300_sxm")


def show_example(as_json: bool) -> None:
    """Print the table of options, and what follows from it."""
    catalog = load_catalog()
    devices = tuple((name, catalog.accelerator(name).memory_bytes) for name in DEVICES)
    token = calc.gqa_bytes_per_token(LAYERS, KV_HEADS, HEAD_DIM, 2)
    options = calc.sizing_table(PARAMETERS, token, CONTEXT, USERS, devices)
    if as_json:
        typer.echo(json.dumps([_row(option) for option in options], indent=2))
        return
    from rich.table import Table

    from shoal.cli.console import stdout_console

    title = (
        f"Llama-3.1-70B for {USERS} users of {CONTEXT:,} tokens: {decimal_bytes(token)} a token, "
        f"{decimal_bytes(token * CONTEXT)} a user, {calc.HEADROOM:.0%} of each device kept free"
    )
    table = Table(title=title, title_justify="left")
    for column in ("weights", "cache", "weights GB", "cache GB", "total GB"):
        table.add_column(column, justify="left" if " " not in column else "right")
    for name, size in devices:
        table.add_column(f"{name} ({size / 1e9:.0f} GB)", justify="right")
    for option in options:
        cells = [f"{count.exact:.3f}: {count.label()}" for _, count in option.counts]
        sizes = (option.weight_bytes, option.cache_bytes, option.total_bytes)
        table.add_row(option.weights, option.cache, *(f"{size / 1e9:,.1f}" for size in sizes), *cells)
    console = stdout_console()
    console.print(table, markup=False)
    first, last = options[0], options[-1]
    for note in (
        f"The cache is {first.cache_bytes / first.weight_bytes:.1f} times the weights.",
        f"FP8 weights save {decimal_bytes(first.weight_bytes - last.weight_bytes)}, an FP8 cache "
        f"{decimal_bytes(first.cache_bytes - last.cache_bytes)}: quantize the right thing.",
        "Half the users take half the cache; the weights stay. Too close to call: add headroom.",
        "A lower bound: no activations, fragmentation or engine's rules. `shoal calc fit --model` has those.",
    ):
        console.print(f"• {note}", highlight=False, markup=False)


def _row(option: calc.SizingOption) -> dict[str, object]:
    counts = {
        name: {"exact": count.exact, "count": count.count, "too_close_to_call": count.too_close}
        for name, count in option.counts
    }
    return {
        "weights": option.weights,
        "cache": option.cache,
        "weight_bytes": option.weight_bytes,
        "cache_bytes": option.cache_bytes,
        "devices": counts,
    }
