"""Plots as inline SVG: they scale to the screen, take its colours, and need nothing from anywhere."""

import math
from collections.abc import Sequence
from html import escape

from shoal.workload.report.document import Plot, Series, number

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 14, 62
_COLOURS = ("#2b7bba", "#d9822b", "#3a9b5c", "#b0413e", "#7a5ea8", "#8a7a2d")
_MAX_POINTS = 1500
"""A phone draws that many at once without a pause; more are thinned evenly."""


def svg(plot: Plot) -> str:
    """The plot as an `<svg>` element; empty where there is nothing to draw."""
    points = [p for s in plot.series for p in s.points]
    if not points:
        return ""
    x0, x1 = _range([x for x, _ in points])
    y0, y1 = _range([y for _, y in points] + [y for _, y in plot.marks])
    y0 = min(0.0, y0)
    frame = _Frame(x0, x1, y0, y1)
    parts = [_axes(plot, frame)]
    parts += [_mark(label, y, frame) for label, y in plot.marks]
    parts += [_drawn(s, _COLOURS[i % len(_COLOURS)], frame) for i, s in enumerate(plot.series)]
    if len(plot.series) > 1 or plot.series[0].name:
        parts.append(_legend(plot.series))
    label = escape(f"{plot.title}: {plot.y} over {plot.x}", quote=True)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


class _Frame:
    """From values to places."""

    def __init__(self, x0: float, x1: float, y0: float, y1: float) -> None:
        self.x0, self.x1, self.y0, self.y1 = x0, x1, y0, y1

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x0) / (self.x1 - self.x0) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (_HEIGHT - _TOP - _BOTTOM)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `wanted` of them."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(plot: Plot, frame: _Frame) -> str:
    parts = []
    bottom = _HEIGHT - _BOTTOM
    for value in ticks(frame.y0, frame.y1):
        y = frame.y(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for value in ticks(frame.x0, frame.x1, 6):
        x = frame.x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 33}" text-anchor="middle">{escape(plot.x)}</text>')
    height = (_TOP + bottom) / 2
    turned = f'transform="rotate(-90 13 {height})"'
    parts.append(f'<text x="13" y="{height}" text-anchor="middle" {turned}>{escape(plot.y)}</text>')
    return "".join(parts)


def _mark(label: str, value: float, frame: _Frame) -> str:
    y = frame.y(value)
    line = f'<path class="mark" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
    return f'{line}<text x="{_WIDTH - _RIGHT - 4}" y="{y - 4:.1f}" text-anchor="end">{escape(label)}</text>'


def _drawn(series: Series, colour: str, frame: _Frame) -> str:
    step = max(1, math.ceil(len(series.points) / _MAX_POINTS))
    kept = series.points[::step]
    places = [(frame.x(x), frame.y(y)) for x, y in kept]
    if series.kind == "dots" or len(places) == 1:
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        return f'<g fill="{colour}" fill-opacity=".65">{dots}</g>'
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}" if series.kind == "steps" else f"L{x:.1f} {y:.1f}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'


def _legend(series: Sequence[Series]) -> str:
    parts, x = [], float(_LEFT)
    for i, s in enumerate(series):
        colour = _COLOURS[i % len(_COLOURS)]
        parts.append(f'<rect x="{x:.0f}" y="{_HEIGHT - 16}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="{_HEIGHT - 7}">{escape(s.name)}</text>')
        x += 30 + 7.2 * len(s.name)
    return "".join(parts)
