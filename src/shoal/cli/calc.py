"""`shoal calc`: the arithmetic of sizing, one question a command."""

from typing import Annotated

import typer

from shoal.cli.calc_inputs import (
    Catalogs,
    Context,
    Dtype,
    Gpu,
    HeadDim,
    Json,
    KvDtype,
    KvHeads,
    Layers,
    MaxNumSeqs,
    Memory,
    MemoryUtilization,
    Model,
    ModelName,
    Params,
    Users,
    cache_of,
    device_of,
    model_named,
    model_of,
    show,
    weights_of,
)
from shoal.plan import calc
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.specs.quantities import parse_count, parse_quantity, parse_share
from shoal.specs.units import decimal_bytes, duration, gigabytes

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Arithmetic of sizing: weights, KV cache, fit, bubbles, hand-off, cost. GB is 10^9 bytes, GiB 2^30.",
)

Headroom = Annotated[str, typer.Option(help="Share of a device kept free for runtime and activations: 20%, 0.2.")]
Degree = Annotated[int, typer.Option(min=1, help="Degree of this parallel axis.")]


@app.command()
def weights(
    name: ModelName = None, model: Model = None, params: Params = None, dtype: Dtype = None,
    tp: Degree = 1, pp: Degree = 1, ep: Degree = 1, dp: Degree = 1,
    catalog: Catalogs = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Bytes of the weights; with --model exact, by part, and on the fullest device of a layout."""
    model = model_named(name, model)
    shown, total = weights_of(model, params, dtype, catalog)
    rows = [("all weights", gigabytes(total))]
    values: dict[str, object] = {"model": shown, "weight_bytes": total}
    if model is not None:
        from shoal.plan.memory import stage_weights
        from shoal.specs.sizes import weight_bytes
        from shoal.specs.tensors import parameter_counts

        spec = model_of(model, catalog)
        counts, parts = parameter_counts(spec), weight_bytes(spec, dtype)
        rows.insert(0, ("parameters", f"{counts.total / 1e9:,.2f}B, {counts.active / 1e9:,.2f}B a token"))
        for part in ("embedding", "attention", "dense_ffn", "shared_experts", "routed_experts", "lm_head"):
            if getattr(parts, part):
                rows.append((f"  {part.replace('_', ' ')}", gigabytes(getattr(parts, part))))
        layout = Layout(tp=tp, pp=pp, ep=ep, dp=dp).validate(spec)
        per_stage = stage_weights(spec, layout, dtype)
        rows.append((f"fullest device of {layout.label()}", gigabytes(max(per_stage))))
        values |= {"parameters": counts.total, "active": counts.active, "worst_device_bytes": max(per_stage)}
    elif (tp, pp, ep, dp) != (1, 1, 1, 1):
        raise SpecError("MODEL", None, "a model: a layout cuts tensors, and a parameter count has none")
    show(f"Weights of {shown}", rows, values, as_json)


@app.command()
def kv(
    name: ModelName = None, model: Model = None, context: Context = "8K", users: Users = "1",
    kv_dtype: KvDtype = "bf16", layers: Layers = None, kv_heads: KvHeads = None, head_dim: HeadDim = None,
    catalog: Catalogs = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Bytes of the KV cache: per token, per sequence, of all users."""
    model = model_named(name, model)
    token, sequence, total = cache_of(model, (layers, kv_heads, head_dim), kv_dtype, context, users, catalog)
    rows = [
        ("each further token", f"{decimal_bytes(token)} ({token:,.0f} bytes)"),
        (f"one sequence of {context}", gigabytes(sequence)),
        (f"all users ({users})", gigabytes(total)),
    ]
    values: dict[str, object] = {"bytes_per_token": token, "sequence_bytes": sequence, "total_bytes": total}
    show(f"KV cache in {kv_dtype}", rows, values, as_json)


@app.command()
def fit(
    name: ModelName = None, model: Model = None, params: Params = None, dtype: Dtype = None, gpu: Gpu = None,
    memory: Memory = None, context: Context = "8K", users: Users = "1", kv_dtype: KvDtype = "bf16",
    headroom: Headroom = "20%",
    layers: Layers = None, kv_heads: KvHeads = None, head_dim: HeadDim = None,
    tp: Degree = 1, pp: Degree = 1, ep: Degree = 1, dp: Degree = 1,
    engine: Annotated[
        str | None, typer.Option(help="Engine of the layout: vllm (default), sglang, trtllm or shoal (processors).")
    ] = None,
    engine_version: Annotated[str | None, typer.Option(help="Its version; default: the newest known.")] = None,
    memory_utilization: MemoryUtilization = None, max_num_seqs: MaxNumSeqs = None,
    catalog: Catalogs = None, as_json: Json = False,
) -> None:  # fmt: skip
    """How many devices hold weights and cache; with --model and --gpu also what one layout and engine hold."""
    model = model_named(name, model)
    shown, held = weights_of(model, params, dtype, catalog)
    free = parse_share(headroom, "--headroom")
    _, _, cached = cache_of(model, (layers, kv_heads, head_dim), kv_dtype, context, users, catalog)
    device, size = device_of(gpu, memory, catalog)
    count = calc.devices_needed(held + cached, size, free)
    rows = [
        ("weights", gigabytes(held)),
        (f"KV of {users} x {context}", gigabytes(cached)),
        (f"usable of {device}", f"{gigabytes(size * (1 - free))}, {free:.0%} kept free"),
        ("devices needed", f"{count.exact:.3f}, so {count.label()}"),
    ]
    values: dict[str, object] = {
        "weight_bytes": held, "cache_bytes": cached, "exact": count.exact, "count": count.count,
        "too_close_to_call": count.too_close,
    }  # fmt: skip
    if model is not None and gpu is not None:
        from shoal.cli.calc_layout import LayoutFit, fit_layout

        _usable(model, gpu, count, rows, values, catalog)
        asked = LayoutFit(
            model, gpu, Layout(tp=tp, pp=pp, ep=ep, dp=dp), dtype, kv_dtype, context, engine, engine_version,
            memory_utilization, max_num_seqs, tuple(catalog or ()),
        )  # fmt: skip
        found, layout_values = fit_layout(asked)
        rows += found
        values["layout"] = layout_values
    show(f"{shown} on {device}", rows, values, as_json)


def _usable(
    model: str, gpu: str, count: calc.DeviceCount, rows: list[tuple[str, str]], values: dict[str, object],
    catalog: Catalogs,
) -> None:  # fmt: skip
    from shoal.specs.catalog import load_catalog

    spec = model_of(model, catalog)
    heads, per_node = spec.layers[0].attention.heads, load_catalog(catalog or ()).accelerator(gpu).devices_per_node
    usable = calc.usable_count(count.count, heads, len(spec.layers), per_node)
    reasons = dict.fromkeys(reason for _, reason in usable.passed_over)
    passed = f"; {count.count} to {usable.count - 1} are passed over: {', '.join(reasons)}" if reasons else ""
    rows.append(("as one replica", f"{usable.count} as tp{usable.tp} pp{usable.pp}{passed}"))
    values["usable_count"] = usable.count


@app.command()
def bubble(
    stages: Annotated[int, typer.Option(help="Pipeline stages, K.")],
    micro_batches: Annotated[int, typer.Option("--micro-batches", help="Micro-batches in flight, M.")],
    as_json: Json = False,
) -> None:
    """Idle share of a pipeline, (K - 1)/(M + K - 1)."""
    share = calc.bubble(stages, micro_batches)
    rows = [("idle", f"{share:.1%}"), ("for a tenth or less", f"{9 * (stages - 1)} micro-batches or more")]
    notes = ["GPipe's bound for training: serving has no flush, so that a full pipeline idles less."]
    show(f"{stages} stages, {micro_batches} micro-batches", rows, {"idle_share": share}, as_json, notes)


@app.command()
def handoff(
    size: Annotated[str | None, typer.Option(help='Bytes to move, e.g. "68 GB"; or --model and --context.')] = None,
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model whose cache moves.")] = None,
    model: Model = None, context: Context = "8K", kv_dtype: KvDtype = "bf16",
    bandwidth: Annotated[str | None, typer.Option(help="Of a port: 400gbps, 50GB/s; or --gpu for its NIC.")] = None,
    gpu: Gpu = None,
    ports: Annotated[int, typer.Option(help="Ports used at once.")] = 1,
    efficiency: Annotated[str, typer.Option(help="Share of line rate reached: 80%, 0.8.")] = "100%",
    overlap_layers: Annotated[int, typer.Option(help="Layers streamed while prefill runs; 1: none.")] = 1,
    catalog: Catalogs = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Time to move a sequence's KV from a prefill to a decode replica."""
    model = model_named(name, model)
    if size is not None:
        moved = parse_quantity(size, "bytes", "--size")
    elif model is not None:
        _, moved, _ = cache_of(model, (None, None, None), kv_dtype, context, "1", catalog)
    else:
        raise SpecError("--size", None, 'bytes such as "68 GB", or a model and --context')
    rate = _bandwidth(bandwidth, gpu, catalog)
    reached = parse_share(efficiency, "--efficiency", whole=True)
    seconds = calc.handoff_seconds(moved, rate, ports, reached, 0.0, overlap_layers)
    rows = [
        ("to move", gigabytes(moved)),
        ("link", f"{ports} x {rate / 1e9:,.1f} GB/s ({rate * 8 / 1e9:,.0f} Gb/s) at {reached:.0%}"),
        ("time", duration(seconds)),
    ]
    show("Hand-off", rows, {"bytes": moved, "bandwidth": rate, "seconds": seconds}, as_json)


def _bandwidth(bandwidth: str | None, gpu: str | None, catalog: Catalogs) -> float:
    from shoal.specs.catalog import load_catalog

    if bandwidth is not None:
        return parse_quantity(bandwidth, "bytes/s", "--bandwidth")
    if gpu is None:
        raise SpecError("--bandwidth", None, "a rate such as 400gbps, or --gpu")
    nic = load_catalog(catalog or ()).accelerator(gpu, "--gpu").nic
    if nic is None:
        raise SpecError("--gpu", gpu, "an accelerator whose network is known, or --bandwidth")
    return nic.bandwidth


@app.command()
def cost(
    devices: Annotated[str, typer.Option(help="Devices running: 8, 1,814 (a mean may be fractional).")],
    price: Annotated[str | None, typer.Option(help="Of a device: $2/h, $1,440/month; or --gpu.")] = None,
    gpu: Gpu = None,
    rented: Annotated[bool, typer.Option(help="With --gpu: the price of renting instead of owning.")] = False,
    tokens_per_second: Annotated[
        str | None, typer.Option("--tokens-per-second", help="Of all devices together, when busy: 14,800, 15k.")
    ] = None,
    utilization: Annotated[str, typer.Option(help="Share of the time they are busy: 50%.")] = "100%",
    catalog: Catalogs = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Dollars a day, and a million tokens."""
    rate = _price(price, gpu, rented, catalog)
    count = parse_count(devices, "--devices", "8 or 1,814")
    day = calc.cost_per_day(count, rate)
    rows = [("price", f"{rate:,.2f} USD per device-hour"), ("per day", f"{day:,.0f} USD")]
    values: dict[str, object] = {"usd_per_device_hour": rate, "usd_per_day": day}
    if tokens_per_second is not None:
        busy = parse_share(utilization, "--utilization", whole=True)
        speed = parse_count(tokens_per_second, "--tokens-per-second", "14,800 or 15k")
        million = calc.cost_per_million(count, rate, speed, busy)
        rows.append((f"a million tokens at {busy:.0%} use", f"{million:,.4f} USD"))
        values["usd_per_million_tokens"] = million
    show(f"{count:g} devices", rows, values, as_json)


def _price(price: str | None, gpu: str | None, rented: bool, catalog: Catalogs) -> float:
    from shoal.specs.catalog import load_catalog

    if price is not None:
        return parse_quantity(price, "usd/h", "--price")
    if gpu is None:
        raise SpecError("--price", None, "a price such as $2/h, or --gpu")
    basis = "rented" if rented else "owned"
    known = load_catalog(catalog or ()).accelerator(gpu).price("rented" if rented else "owned")
    if known is None:
        raise SpecError("--gpu", gpu, f"an accelerator whose price ({basis}) is known, or --price")
    return known


@app.command()
def example(as_json: Json = False) -> None:
    """The worked example: 70B parameters, 200 users of 8K each, on three sizes of device."""
    from shoal.cli.calc_example import show_example

    show_example(as_json)
