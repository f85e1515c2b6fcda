"""Production traces as loads: Azure's CSV (lengths and times) and Mooncake's JSONL (prefix structure besides).

`shoal.plan.readers.trace` reads the files.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.plan.readers.trace import BLOCK_TOKENS, TraceRequest, read_trace
from shoal.specs.errors import SpecError
from shoal.workload.arrivals import scaled_times
from shoal.workload.load import Load, Segment, Session, Turn

__all__ = ["BLOCK_TOKENS", "Cut", "TraceRequest", "read_trace", "trace_load"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a trace is replayed, and how it is fitted to a smaller model or machine."""

    limit: int | None = None
    """At most this many requests."""
    start: float = 0.0
    """Skip this many seconds of the trace."""
    length_scale: float = 1.0
    """Multiplies every length, block by block: what was shared stays shared."""
    max_input: int | None = None
    """Longer prompts lose their end."""
    max_output: int | None = None


def trace_load(path: Path, cut: Cut, speed: float = 1.0, rate: float | None = None) -> Load:
    """A trace as single-turn sessions at its own times, `speed` times as fast or with mean rate `rate`."""
    if not 0 < cut.length_scale <= 1000:
        raise SpecError("length_scale", cut.length_scale, "a factor above 0 and at most 1000")
    requests = read_trace(path, cut.limit, cut.start)
    times = scaled_times(np.asarray([r.at for r in requests]), speed, rate)
    sessions, clipped = [], 0
    for i, (request, at) in enumerate(zip(requests, times.tolist(), strict=True)):
        segments = _segments(i, request, cut.length_scale)
        kept = _clip(segments, cut.max_input)
        output = max(1, round(request.output * cut.length_scale))
        wanted = min(output, cut.max_output or output)
        clipped += kept != segments or wanted != output
        sessions.append(Session((Turn(kept, wanted),), at))
    span = float(times[-1])
    how = f"at {rate:g}/s" if rate is not None else f"at {speed:g}x its own speed"
    scale = f", lengths x{cut.length_scale:g}" if cut.length_scale != 1 else ""
    notes = (f"{clipped} of {len(sessions)} trace requests were shortened to fit the limits",) if clipped else ()
    mean = (len(sessions) - 1) / span if span > 0 else None
    return Load(tuple(sessions), f"trace {path.name} {how}{scale}", mean, notes)


def _segments(index: int, request: TraceRequest, scale: float) -> tuple[Segment, ...]:
    if not request.blocks:
        return (Segment(f"trace/{index}", max(1, round(request.input * scale))),)
    block = max(1, round(BLOCK_TOKENS * scale))
    last = request.input - BLOCK_TOKENS * (len(request.blocks) - 1)
    sizes = [block] * (len(request.blocks) - 1) + [min(block, max(1, round(last * scale)))]
    return tuple(Segment(f"block/{b}", size) for b, size in zip(request.blocks, sizes, strict=True))


def _clip(segments: tuple[Segment, ...], most: int | None) -> tuple[Segment, ...]:
    if most is None:
        return segments
    kept, left = [], most
    for segment in segments:
        if left <= 0:
            break
        kept.append(Segment(segment.key, min(segment.tokens, left), segment.role))
        left -= segment.tokens
    return tuple(kept)
