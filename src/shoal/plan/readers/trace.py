"""Traces and logs of requests, read: lengths, times and prefix structure.

Formats: Azure/AzurePublicDataset `AzureLLMInferenceTrace_*.csv` (TIMESTAMP, ContextTokens, GeneratedTokens); the
trace of the Mooncake paper (FAST '25): timestamp in ms, lengths, and the hash ids of the prompt's 512-token blocks;
the same with requests that wait for others (`trace_chain.py`); and JSON lines with a `usage` as OpenAI-compatible
servers log it: prompt_tokens, completion_tokens, and the time.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.plan.readers.trace_chain import Chains, seconds
from shoal.specs.errors import SpecError

BLOCK_TOKENS = 512
"""Tokens of a block that a Mooncake hash id stands for."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    at: float
    """Seconds, on the trace's own clock. Of a request that waits for others: the earliest, if they took no time."""
    input: int
    """Tokens of the whole prompt."""
    output: int
    blocks: tuple[int, ...] = ()
    """Hash ids of the prompt's blocks; empty: the trace says nothing of prefixes."""
    cached: int | None = None
    """Input tokens that the server found in its prefix cache; None: the log does not say."""
    id: str = ""
    session: str = ""
    """The conversation or the run of an agent that it belongs to; empty: none."""
    after: tuple[str, ...] = ()
    """Ids of the requests whose answers must be there before it is sent; empty: it is sent at `at`."""
    delay: float = 0.0
    """Seconds between the last of these answers and this request: thinking, and waiting for tools."""
    new: int = 0
    """Tokens that it adds to the prompt and the answer of the one request that it waits for; 0: it stands alone."""
    model: str | None = None
    """None: the trace does not say."""
    priority: int = 0
    """Lower is served first."""


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
    # A chain may wait for what the offset skips: its times are those of a whole trace.
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


_ACCEPTED = (
    "timestamp (ms), input_length, output_length and one hash id for each 512 tokens; or time (s or ISO 8601) with "
    "prompt_tokens and completion_tokens"
)


def _json_lines(path: Path) -> Iterator[TraceRequest]:
    chains = Chains()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"{type(row).__name__}, not an object")
                yield _logged(row) if "input_length" not in row else _mooncake(row, number, chains)
            except KeyError as error:
                raise SpecError(f"{path.name}: line {number}", f"no {error.args[0]}", _ACCEPTED) from None
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise SpecError(f"{path.name}: line {number}", str(error), _ACCEPTED) from None


def _mooncake(row: Mapping[str, object], number: int, chains: Chains) -> TraceRequest:
    ids = row.get("hash_ids") or ()
    if not isinstance(ids, list | tuple):
        raise ValueError(f"hash_ids {ids!r} is no list")
    blocks, size = tuple(int(block) for block in ids), _tokens(row["input_length"])
    if blocks and not BLOCK_TOKENS * (len(blocks) - 1) < size <= BLOCK_TOKENS * len(blocks):
        raise ValueError(f"{len(blocks)} hash ids for {size} tokens")
    output = _tokens(row["output_length"])
    link = chains.link(row, number, size, output, has_blocks=bool(blocks))
    return TraceRequest(
        link.at,
        link.input,
        output,
        blocks,
        id=link.id,
        session=link.session,
        after=link.after,
        delay=link.delay,
        new=link.new,
        model=_model(row),
        priority=_priority(row),
    )


def _model(row: Mapping[str, object]) -> str | None:
    name = row.get("model")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"model {name!r} is no name")
    return name or None


def _priority(row: Mapping[str, object]) -> int:
    value = row.get("priority") or 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"priority {value!r} is no whole number")
    return value


_TIMES = ("time", "timestamp", "created", "ts")


def _logged(row: Mapping[str, object]) -> TraceRequest:
    """A line of a server's log: the usage on top or under `usage`, the time in seconds or ISO 8601."""
    usage = row.get("usage", row)
    if not isinstance(usage, dict):
        raise ValueError(f"usage {usage!r} is no object")
    when = next((row[name] for name in _TIMES if name in row), None)
    if when is None:
        raise KeyError("time")
    at = _seconds(when) if isinstance(when, str) else seconds(when, "time")
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("cached_tokens"))
    sizes = _tokens(usage["prompt_tokens"]), _tokens(usage["completion_tokens"])
    return TraceRequest(
        at, *sizes, cached=None if cached is None else int(cached), model=_model(row), priority=_priority(row)
    )
