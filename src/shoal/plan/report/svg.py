"""Charts as inline SVG: they scale with the page, need no script, and print."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 14, 46
COLORS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#be123c", "#a16207", "#475569")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of points, in data coordinates."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with an interval."""

    label: str
    mean: float
    low: float
    high: float
    text: str


def lines(series: Sequence[Series], x_name: str, y_name: str, title: str) -> str:
    """Lines on logarithmic axes, with a legend below."""
    shown = [s for s in series if s.points]
    if not shown:
        return ""
    xs = [x for s in shown for x, _ in s.points if x > 0]
    ys = [y for s in shown for _, y in s.points if y > 0]
    x_low, x_high, y_low, y_high = _bounds(xs), _bounds(xs, True), _bounds(ys), _bounds(ys, True)

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / x_low) / math.log(x_high / x_low)
        up = math.log(y / y_low) / math.log(y_high / y_low)
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM),
        )

    parts = [_open(title)]
    for value in _ticks(x_low, x_high):
        x, _ = place(value, y_low)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" class="tick mid">{value:g}</text>')
    for value in _ticks(y_low, y_high):
        _, y = place(x_low, value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="tick end">{value:g}</text>')
    for number, one in enumerate(shown):
        color = COLORS[number % len(COLORS)]
        placed = [place(x, y) for x, y in one.points if x > 0 and y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>' for x, y in placed]
    parts.append(f'<text x="{(WIDTH + _LEFT) / 2}" y="{HEIGHT - 8}" class="axis mid">{escape(x_name)}</text>')
    middle = (HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{middle}" class="axis mid" transform="rotate(-90 14 {middle})">'
        f"{escape(y_name)}</text></svg>"
    )
    keys = "".join(
        f'<span><i style="background:{COLORS[n % len(COLORS)]}"></i>{escape(s.name)}</span>'
        for n, s in enumerate(shown)
    )
    return "".join(parts) + f'<p class="legend">{keys}</p>'


def bars(items: Sequence[Bar], title: str) -> str:
    """Horizontal bars from zero, with the interval as a whisker."""
    if not items:
        return ""
    # One very uncertain design would squeeze the others to nothing: its whisker is cut off at the edge.
    most = min(max(item.high for item in items), 2.5 * max(item.mean for item in items))
    step, top = 46, 6
    height = top + step * len(items)
    parts = [_open(title, height)]
    for number, item in enumerate(items):
        y = top + number * step
        scale = (WIDTH - 110) / most
        end = WIDTH - 100
        parts.append(f'<text x="0" y="{y + 12}" class="tick">{escape(item.label)}</text>')
        parts.append(
            f'<rect x="0" y="{y + 18}" width="{item.mean * scale:.1f}" height="16" rx="2" fill="#2563eb"/>'
        )
        low, high = item.low * scale, min(item.high * scale, end)
        parts.append(f'<line x1="{low:.1f}" y1="{y + 26}" x2="{high:.1f}" y2="{y + 26}" class="whisker"/>')
        parts.append(f'<text x="{WIDTH}" y="{y + 31}" class="tick end">{escape(item.text)}</text>')
    return "".join(parts) + "</svg>"


def stacked(shares: Sequence[tuple[str, float, str]], title: str) -> str:
    """One bar of shares that add up to one: (name, share, text)."""
    parts, at, keys = [_open(title, 40)], 0.0, []
    for number, (name, share, text) in enumerate(shares):
        color = COLORS[number % len(COLORS)]
        width = share * WIDTH
        parts.append(f'<rect x="{at:.1f}" y="4" width="{width:.1f}" height="30" fill="{color}"/>')
        if share > 0.08:
            parts.append(f'<text x="{at + width / 2:.1f}" y="24" class="mid inside">{share:.0%}</text>')
        at += width
        keys.append(f'<span><i style="background:{color}"></i>{escape(name)} {escape(text)}</span>')
    return "".join(parts) + f'</svg><p class="legend">{"".join(keys)}</p>'


def _open(title: str, height: int = HEIGHT) -> str:
    name = escape(title)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}"><title>{name}</title>'


def _bounds(values: Sequence[float], upper: bool = False) -> float:
    low, high = min(values), max(values)
    if high / low < 1.5:
        low, high = low / 1.5, high * 1.5
    return high * 1.08 if upper else low / 1.08


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or fewer of them where they would crowd."""
    found = [
        m * 10.0**e
        for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for m in (1, 2, 5)
        if low <= m * 10.0**e <= high
    ]
    return found if len(found) <= 8 else [v for v in found if math.isclose(math.log10(v), round(math.log10(v)))]
