"""Traces and logs of requests, read: lengths, times and prefix structure.

Formats: Azure/AzurePublicDataset `AzureLLMInferenceTrace_*.csv` (TIMESTAMP, ContextTokens, GeneratedTokens); the
trace of the Mooncake paper (FAST '25): timestamp in ms, lengths, and the hash ids of the prompt's 512-token blocks;
and JSON lines with a `usage` as OpenAI-compatible servers log it: prompt_tokens, completion_tokens, and the time.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

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
    cached: int | None = None
    """Input tokens that the server found in its prefix cache; None: the log does not say."""


def read_trace(path: Path, limit: int | None = None, start: float = 0.0) -> tuple[TraceRequest, ...]:
    """The requests of a `.csv` (Azure) or `.jsonl` (Mooncake, or a log of usages) trace in order of time.

    Raises `SpecError` naming file and line for anything that doesn't parse, and for an empty selection.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise SpecError(
            "trace",
            str(path),
            "an Azure .csv or a Mooncake .jsonl file, or a .jsonl log of requests with their usage",
        )
    if not path.is_file():
        raise SpecError("trace", str(path), "a file that exists")
    found: list[TraceRequest] = []
    first: float | None = None
    for request in _azure(path) if path.suffix == ".csv" else _json_lines(path):
        first = request.at if first is None else first
        if request.at - first < start:
            continue
        found.append(request)
        if limit is not None and len(found) >= limit:
            break
    if not found:
        raise SpecError("trace", str(path), "a trace with at least one request after its start offset")
    return tuple(sorted(found, key=lambda r: r.at))


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


def _json_lines(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield _logged(row) if "input_length" not in row else _mooncake(row)
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                accepted = (
                    "timestamp (ms), input_length, output_length and one hash id for each 512 tokens; or time "
                    "(s or ISO 8601) with prompt_tokens and completion_tokens"
                )
                raise SpecError(f"{path.name}: line {number}", str(error), accepted) from None


def _mooncake(row: Mapping[str, object]) -> TraceRequest:
    ids = row.get("hash_ids", ())
    assert isinstance(ids, list | tuple)
    blocks, size = tuple(int(block) for block in ids), _tokens(row["input_length"])
    if blocks and not BLOCK_TOKENS * (len(blocks) - 1) < size <= BLOCK_TOKENS * len(blocks):
        raise ValueError(f"{len(blocks)} hash ids for {size} tokens")
    at = float(row["timestamp"]) / 1e3  # type: ignore[arg-type]
    return TraceRequest(at, size, _tokens(row["output_length"]), blocks)


_TIMES = ("time", "timestamp", "created", "ts")


def _logged(row: Mapping[str, object]) -> TraceRequest:
    """A line of a server's log: the usage on top or under `usage`, the time in seconds or ISO 8601."""
    usage = row.get("usage", row)
    assert isinstance(usage, dict)
    when = next((row[name] for name in _TIMES if name in row), None)
    if when is None:
        raise KeyError("time")
    at = _seconds(when) if isinstance(when, str) else float(when)  # type: ignore[arg-type]
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("cached_tokens"))
    sizes = _tokens(usage["prompt_tokens"]), _tokens(usage["completion_tokens"])
    return TraceRequest(at, *sizes, cached=None if cached is None else int(cached))
