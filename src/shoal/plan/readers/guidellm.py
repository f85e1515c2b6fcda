"""guidellm's `benchmarks.json`: a list of benchmarks, each with metrics by outcome."""

from collections.abc import Mapping

from shoal.plan.readers.observation import Observation, number, optional_number
from shoal.specs.errors import SpecError


def read_guidellm(report: Mapping[str, object], where: str) -> list[Observation]:
    """One observation a benchmark, from its successful requests' means.

    `inter_token_latency_ms` is the mean gap, which is TPOT here; `time_per_output_token_ms` counts the first token
    in and is used only where the other is missing.
    """
    listed = report.get("benchmarks")
    if not isinstance(listed, list):
        raise SpecError(f"{where}: benchmarks", type(listed).__name__, "a list")
    found: list[Observation] = []
    for index, item in enumerate(listed):
        metrics = item.get("metrics") if isinstance(item, Mapping) else None
        here = f"{where}: benchmarks[{index}].metrics"
        if not isinstance(metrics, Mapping):
            raise SpecError(here, metrics, "a mapping")
        gap = optional_number(metrics, "inter_token_latency_ms.successful.mean")
        tpot = gap or number(metrics, "time_per_output_token_ms.successful.mean", here)
        found.append(
            Observation(
                concurrency=max(1.0, number(metrics, "request_concurrency.successful.mean", here)),
                tpot=tpot / 1e3,
                ttft=number(metrics, "time_to_first_token_ms.successful.mean", here) / 1e3,
                input_tokens=number(metrics, "prompt_token_count.successful.mean", here),
                output_tokens=number(metrics, "output_token_count.successful.mean", here),
                source=here,
            )
        )
    return found
