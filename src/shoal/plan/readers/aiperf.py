"""aiperf's `profile_export_aiperf.json`: one statistics block a metric, with its unit."""

from collections.abc import Mapping

from shoal.plan.readers.observation import Observation, number, optional_number
from shoal.specs.errors import SpecError

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def read_aiperf(report: Mapping[str, object], where: str) -> list[Observation]:
    """The run's means. Its `inter_token_latency` is a mean a request, which is TPOT here."""
    ttft = _duration(report, "time_to_first_token", where)
    tpot = _duration(report, "inter_token_latency", where)
    inputs = number(report, "input_sequence_length.avg", where)
    outputs = number(report, "output_sequence_length.avg", where)
    concurrency = optional_number(report, "input_config.loadgen.concurrency")
    if not concurrency:
        rate = number(report, "request_throughput.avg", where)
        concurrency = max(1.0, rate * (ttft + tpot * max(outputs - 1, 0)))
    return [Observation(concurrency, tpot, ttft, inputs, outputs, where)]


def _duration(report: Mapping[str, object], metric: str, where: str) -> float:
    block = report.get(metric)
    unit = block.get("unit") if isinstance(block, Mapping) else None
    if not isinstance(unit, str) or unit.lower() not in _SECONDS:
        raise SpecError(f"{where}: {metric}.unit", unit, f"one of {', '.join(_SECONDS)}")
    return number(report, f"{metric}.avg", where) * _SECONDS[unit.lower()]
