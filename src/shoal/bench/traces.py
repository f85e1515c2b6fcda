"""Production traces as loads: Azure's CSV (lengths and times) and Mooncake's JSONL (prefix structure besides).

Formats: Azure/AzurePublicDataset `AzureLLMInferenceTrace_*.csv` (TIMESTAMP, ContextTokens, GeneratedTokens) and the
trace of the Mooncake paper (FAST '25): timestamp in ms, lengths, and the hash ids of the prompt's 512-token blocks.
"""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from shoal.bench.arrivals import scaled_times
from shoal.bench.load import Load, Segment, Session, Turn
from shoal.specs.errors import SpecError

BLOCK_TOKENS = 512
"""Tokens of a block that a Mooncake hash id stands for."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    at: float
    """Seconds, on the trace's own clock."""
    input: int
    output: int
    blocks: tuple[int, ...] = ()
    """Hash ids of the prompt's blocks; empty: the trace says nothing of prefixes."""


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


def read_trace(path: Path, limit: int | None = None, start: float = 0.0) -> tuple[TraceRequest, ...]:
    """The requests of a `.csv` (Azure) or `.jsonl` (Mooncake) trace in order of time.

    Raises `SpecError` naming file and line for anything that doesn't parse, and for an empty selection.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise SpecError("trace", str(path), "an Azure .csv or a Mooncake .jsonl file")
    if not path.is_file():
        raise SpecError("trace", str(path), "a file that exists")
    found: list[TraceRequest] = []
    first: float | None = None
    for request in _azure(path) if path.suffix == ".csv" else _mooncake(path):
        first = request.at if first is None else first
        if request.at - first < start:
            continue
        found.append(request)
        if limit is not None and len(found) >= limit:
            break
    if not found:
        raise SpecError("trace", str(path), "a trace with at least one request after its start offset")
    return tuple(sorted(found, key=lambda r: r.at))


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


def _azure(path: Path) -> Iterator[TraceRequest]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                yield TraceRequest(
                    _seconds(row["TIMESTAMP"]), _tokens(row["ContextTokens"]), _tokens(row["GeneratedTokens"])
                )
            except (KeyError, ValueError, TypeError) as error:
                columns = "TIMESTAMP, ContextTokens, GeneratedTokens"
                raise SpecError(f"{path.name}: line {reader.line_num}", str(error), f"columns {columns}") from None


def _seconds(timestamp: str) -> float:
    # Azure writes seven digits of a second; datetime reads six.
    moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", timestamp.strip()))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _tokens(value: object) -> int:
    number = int(value)  # type: ignore[call-overload]
    if number < 0:
        raise ValueError(f"{number} tokens")
    return max(1, int(number))


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                blocks = tuple(int(b) for b in row.get("hash_ids", ()))
                size = _tokens(row["input_length"])
                if blocks and not BLOCK_TOKENS * (len(blocks) - 1) < size <= BLOCK_TOKENS * len(blocks):
                    raise ValueError(f"{len(blocks)} hash ids for {size} tokens")
                yield TraceRequest(float(row["timestamp"]) / 1e3, size, _tokens(row["output_length"]), blocks)
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                accepted = "timestamp (ms), input_length, output_length and one hash id for each 512 tokens"
                raise SpecError(f"{path.name}: line {number}", str(error), accepted) from None
