"""`vllm bench serve --save-result`: one JSON object a run."""

from collections.abc import Mapping

from shoal.plan.readers.observation import Observation, number, optional_number


def read_vllm_bench(report: Mapping[str, object], where: str) -> list[Observation]:
    """The run's means. Without `max_concurrency` (open loop), requests in flight follow from Little's law."""
    requests = number(report, "completed", where)
    ttft, tpot = number(report, "mean_ttft_ms", where) / 1e3, number(report, "mean_tpot_ms", where) / 1e3
    inputs = number(report, "total_input_tokens", where) / requests
    outputs = number(report, "total_output_tokens", where) / requests
    concurrency = optional_number(report, "max_concurrency")
    if not concurrency:
        rate = requests / number(report, "duration", where)
        concurrency = max(1.0, rate * (ttft + tpot * max(outputs - 1, 0)))
    return [Observation(min(concurrency, requests), tpot, ttft, inputs, outputs, where)]
