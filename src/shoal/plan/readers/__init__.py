"""A user's own measurements: logs and benchmark reports of other tools, read into observations."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from shoal.plan.readers.aiperf import read_aiperf
from shoal.plan.readers.guidellm import read_guidellm
from shoal.plan.readers.observation import Observation
from shoal.plan.readers.shoal_bench import SCHEMA, read_shoal_bench
from shoal.plan.readers.vllm_bench import read_vllm_bench
from shoal.plan.readers.vllm_log import read_vllm_log
from shoal.specs.errors import SpecError

_JSON: Mapping[str, Callable[[Mapping[str, object], str], list[Observation]]] = MappingProxyType(
    {
        "schema": read_shoal_bench,
        "benchmarks": read_guidellm,
        "mean_ttft_ms": read_vllm_bench,
        "time_to_first_token": read_aiperf,
    }
)
"""The key that tells a report's format."""


def read_observations(path: Path) -> list[Observation]:
    """What a file measured: a vLLM log, or a JSON report of `shoal bench`, `vllm bench serve`, guidellm or aiperf.

    Raises `SpecError` for a file that is none of these or holds no measurement.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecError("measurements", str(path), f"a readable file ({error.strerror})") from None
    found = _from_text(text, str(path))
    if not found:
        raise SpecError("measurements", str(path), "at least one measurement with decoding under way")
    return found


def _from_text(text: str, where: str) -> list[Observation]:
    if not text.lstrip().startswith(("{", "[")):
        return read_vllm_log(text, where)
    try:
        report = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError("measurements", where, f"a JSON report that is whole ({error})") from None
    reports: Sequence[object] = report if isinstance(report, list) else [report]
    found: list[Observation] = []
    for item in reports:
        if isinstance(item, dict) and item.get("schema", SCHEMA) != SCHEMA:
            raise SpecError(f"{where}: schema", item["schema"], SCHEMA)
        reader = next((r for key, r in _JSON.items() if isinstance(item, dict) and key in item), None)
        if reader is None or not isinstance(item, dict):
            accepted = (
                "a report of shoal bench (--json), vllm bench serve (mean_ttft_ms), guidellm (benchmarks) or aiperf"
            )
            raise SpecError("measurements", where, accepted)
        found += reader(item, where)
    return found


__all__ = [
    "Observation",
    "read_aiperf",
    "read_guidellm",
    "read_observations",
    "read_shoal_bench",
    "read_vllm_bench",
    "read_vllm_log",
]
