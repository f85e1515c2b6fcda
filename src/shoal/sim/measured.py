"""Logs of requests that a real engine answered: what was asked when, and when answers came."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.specs.errors import SpecError
from shoal.workload.load import Load, Segment, Session, Turn

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_REQUESTS = "requests.jsonl"


@dataclass(frozen=True, slots=True)
class MeasuredLog:
    """One run of one engine. Times in seconds; arrays have one entry per request, in order of arrival."""

    name: str
    arrivals: Floats
    prompts: Counts
    outputs: Counts
    ttft: Floats
    e2e: Floats
    model: str | None = None
    hardware: str | None = None
    tp: int | None = None
    max_num_seqs: int | None = None
    token_budget: int | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None

    @property
    def tpot(self) -> Floats:
        """Of requests with a second token, (E2E − TTFT) / (n − 1)."""
        several = self.outputs > 1
        found: Floats = (self.e2e - self.ttft)[several] / (self.outputs[several] - 1)
        return found

    def load(self) -> Load:
        """The same requests at the same times, none sharing a prompt with another."""
        rows = zip(self.arrivals.tolist(), self.prompts.tolist(), self.outputs.tolist(), strict=True)
        sessions = [Session((Turn((Segment(f"request/{i}", p),), n),), at) for i, (at, p, n) in enumerate(rows)]
        span = float(self.arrivals[-1])
        rate = (len(sessions) - 1) / span if span > 0 else None
        return Load(tuple(sessions), f"log {self.name}", rate)


def read_measured(path: Path) -> MeasuredLog:
    """Read a folder with `requests.jsonl` and `meta.json`, or the JSON lines of `shoal bench --jsonl`.

    Raises SpecError with the file and line that can't be read.
    """
    if path.is_dir():
        return _read_folder(path)
    rows = _rows(path)
    if rows and "scheduled" in rows[0]:
        return _read_bench(path, rows)
    raise SpecError("log", str(path), "a folder with requests.jsonl and meta.json, or what --jsonl of bench writes")


def _rows(path: Path) -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SpecError("log", str(path), f"a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SpecError("log", str(path), "a text file") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise SpecError(f"{path}, line {number}", line[:60], "a JSON object")
        rows.append(row)
    if not rows:
        raise SpecError("log", str(path), "at least one request")
    return rows


def _column(path: Path, rows: list[Mapping[str, object]], name: str) -> Floats:
    values = []
    for number, row in enumerate(rows, start=1):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{path}, line {number}: {name}", value, "a number")
        values.append(float(value))
    return np.asarray(values)


def _read_folder(path: Path) -> MeasuredLog:
    file = path / _REQUESTS
    if not file.is_file():
        raise SpecError("log", str(path), f"a folder with {_REQUESTS}")
    rows = _rows(file)
    arrival = _column(file, rows, "arrival_time")
    # Arrivals are on the wall clock, the rest is on the engine's: the quickest way in is taken for no time.
    shift = float((_column(file, rows, "queued_ts") - arrival).min())
    order = np.argsort(arrival, kind="stable")
    meta = _read_object(path / "meta.json")
    arguments, cache = _object(meta.get("engine_kwargs")), _object(meta.get("kv_cache"))
    return MeasuredLog(
        name=path.name,
        arrivals=(arrival - arrival.min())[order],
        prompts=_column(file, rows, "input_toks").astype(np.int64)[order],
        outputs=_column(file, rows, "output_toks").astype(np.int64)[order],
        ttft=(_column(file, rows, "first_token_ts") - arrival - shift)[order],
        e2e=(_column(file, rows, "last_token_ts") - arrival - shift)[order],
        model=_text(meta.get("model")),
        hardware=_hardware(path),
        tp=_whole(arguments.get("tensor_parallel_size")),
        max_num_seqs=_whole(arguments.get("max_num_seqs")),
        token_budget=_whole(arguments.get("max_num_batched_tokens")),
        max_model_len=_whole(arguments.get("max_model_len")),
        num_blocks=_whole(cache.get("num_gpu_blocks")),
        block_size=_whole(cache.get("block_size")),
    )


def _read_bench(path: Path, rows: list[Mapping[str, object]]) -> MeasuredLog:
    whole = [row for row in rows if row.get("outcome") == "ok" and row.get("ttft") and row.get("e2e")]
    if not whole:
        raise SpecError("log", str(path), "at least one request with an answer")
    whole.sort(key=lambda row: float(str(row["scheduled"])))
    arrivals = _column(path, whole, "scheduled")
    return MeasuredLog(
        name=path.stem,
        arrivals=arrivals - arrivals[0],
        prompts=_column(path, whole, "prompt_tokens").astype(np.int64),
        outputs=_column(path, whole, "output_tokens").astype(np.int64),
        ttft=_column(path, whole, "ttft"),
        e2e=_column(path, whole, "e2e"),
    )


def _hardware(path: Path) -> str | None:
    """As the folder's `config.json` names the device of its first instance."""
    nodes = _read_object(path / "config.json").get("nodes")
    node = _object(nodes[0]) if isinstance(nodes, list) and nodes else {}
    instances = node.get("instances")
    instance = _object(instances[0]) if isinstance(instances, list) and instances else {}
    return _text(instance.get("hardware"))


def _read_object(path: Path) -> Mapping[str, object]:
    try:
        return _object(json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        return {}
    except ValueError:
        raise SpecError("log", str(path), "a JSON object") from None


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
