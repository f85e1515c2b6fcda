"""Figures as an explanation says them."""

from shoal.plan.designs import Design
from shoal.plan.step_time import Estimate
from shoal.specs.layout import Layout


def milliseconds(value: Estimate) -> str:
    """ "42 ms (29 to 60)"."""
    return f"{short(value.mean * 1e3)} ms ({short(value.low * 1e3)} to {short(value.high * 1e3)})"


def short(value: float) -> str:
    """A number to two or three significant digits, never in powers of ten: "0.46", "4.6", "46", "2,610"."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def seconds(value: Estimate) -> str:
    if value.mean < 1:
        return milliseconds(value)
    return f"{value.mean:.3g} s ({short(value.low)} to {short(value.high)})"


def usd(value: float) -> str:
    """Dollars with as many places as they need: "$12", "$0.42", "$0.0031"."""
    if value >= 100:
        return f"${value:,.0f}"
    return f"${value:.2f}" if value >= 0.1 else f"${value:.2g}"


def per_million(design: Design) -> str:
    """ "$0.50 (0.25 to 0.99) a million output tokens", or that there is no price."""
    if design.cost is None:
        return "no price known"
    cost = design.cost.per_million_output
    return f"{usd(cost.mean)} ({short(cost.low)} to {short(cost.high)}) a million output tokens"


def layout_words(layout: Layout) -> str:
    """ "tensor parallelism over 8, 2 pipeline stages", or "one device"."""
    parts = []
    if layout.tp > 1:
        parts.append(f"tensor parallelism over {layout.tp}")
    if layout.pp > 1:
        parts.append(f"{layout.pp} pipeline stages")
    if layout.dp > 1:
        parts.append(f"attention data parallelism over {layout.dp}")
    if layout.ep > 1:
        parts.append(f"experts spread over {layout.ep}")
    return ", ".join(parts) or "one device"


def plural(count: float, word: str) -> str:
    return f"{count:,.0f} {word}" if count == 1 else f"{count:,.0f} {word}s"
