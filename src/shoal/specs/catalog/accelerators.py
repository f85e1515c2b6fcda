"""Accelerators and prices of a catalogue file."""

from dataclasses import replace

from shoal.specs.catalog.entries import Entry
from shoal.specs.errors import SpecError
from shoal.specs.hardware import COMPUTE_DTYPES, Accelerator, Figure, Link
from shoal.specs.quantities import Dimension

_OPTIONAL: tuple[tuple[str, Dimension], ...] = (
    ("reported", "bytes"),
    ("watts", "watts"),
    ("price_owned", "usd/h"),
    ("price_rented", "usd/h"),
)
_FIELDS = (
    *("vendor", "architecture", "aliases", "memory", "bandwidth", "rates", "scale_up", "nic", "devices_per_node"),
    *(name for name, _ in _OPTIONAL),
    "by_name_only",
)


def read_accelerator(name: str, entry: Entry) -> Accelerator:
    """One accelerator; raises `SpecError` for a missing field, a wrong unit or a field that nobody reads."""
    entry.only(*_FIELDS)
    figures: dict[str, Figure] = {
        "memory": entry.required_figure("memory", "bytes"),
        "bandwidth": entry.required_figure("bandwidth", "bytes/s"),
        "devices_per_node": entry.required_figure("devices_per_node", None),
    }
    rates = entry.required_section("rates")
    rates.only(*COMPUTE_DTYPES)
    found = [(dtype, figure) for dtype in COMPUTE_DTYPES if (figure := rates.figure(dtype, "flop/s")) is not None]
    if not found or not {"fp32", "bf16"} & {dtype for dtype, _ in found}:
        raise SpecError(entry.field("rates"), sorted(rates.values), "at least bf16 or fp32")
    figures |= {f"rates.{dtype}": figure for dtype, figure in found}
    for field, dimension in _OPTIONAL:
        if (figure := entry.figure(field, dimension)) is not None:
            figures[field] = figure
    scale_up = _link(entry.required_section("scale_up"), "scale_up", figures)
    nic = entry.section("nic")
    return Accelerator(
        name=name,
        vendor=entry.text("vendor"),
        architecture=entry.text("architecture"),
        memory_bytes=figures["memory"].value,
        bandwidth=figures["bandwidth"].value,
        rates=tuple((dtype, figure.value) for dtype, figure in found),
        scale_up=scale_up,
        nic=None if nic is None else _link(nic, "nic", figures),
        devices_per_node=_whole(figures["devices_per_node"], entry.field("devices_per_node")),
        reported_bytes=_value(figures, "reported"),
        watts=_value(figures, "watts"),
        price_owned=_value(figures, "price_owned"),
        price_rented=_value(figures, "price_rented"),
        aliases=entry.words("aliases"),
        figures=tuple(figures.items()),
        by_name_only=_flag(entry, "by_name_only"),
    )


def _flag(entry: Entry, field: str) -> bool:
    value = entry.values.get(field, False)
    if not isinstance(value, bool):
        raise SpecError(entry.field(field), value, "true or false")
    return value


def read_price(accelerator: Accelerator, entry: Entry) -> Accelerator:
    """The accelerator with the prices of a user's `prices` entry in place of its own."""
    entry.only("owned", "rented")
    figures = dict(accelerator.figures)
    for basis in ("owned", "rented"):
        if (figure := entry.figure(basis, "usd/h")) is not None:
            figures[f"price_{basis}"] = figure
    return replace(
        accelerator,
        price_owned=_value(figures, "price_owned"),
        price_rented=_value(figures, "price_rented"),
        figures=tuple(figures.items()),
    )


def _link(entry: Entry, field: str, figures: dict[str, Figure]) -> Link:
    entry.only("name", "bandwidth", "domain", "latency")
    bandwidth = entry.required_figure("bandwidth", "bytes/s")
    figures[f"{field}.bandwidth"] = bandwidth
    domain = entry.figure("domain", None)
    latency = entry.figure("latency", "seconds")
    for part, figure in (("domain", domain), ("latency", latency)):
        if figure is not None:
            figures[f"{field}.{part}"] = figure
    return Link(
        name=entry.text("name"),
        bandwidth=bandwidth.value,
        domain=None if domain is None else _whole(domain, entry.field("domain")),
        latency=None if latency is None else latency.value,
    )


def _value(figures: dict[str, Figure], name: str) -> float | None:
    figure = figures.get(name)
    return None if figure is None else figure.value


def _whole(figure: Figure, field: str) -> int:
    if not figure.value.is_integer() or figure.value > 1 << 20:
        raise SpecError(field, figure.text, "a whole number of devices, at least 1")
    return int(figure.value)
