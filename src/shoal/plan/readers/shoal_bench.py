"""`shoal bench … --json`: the summaries of a report's runs, wherever the command put them."""

from collections.abc import Iterator, Mapping

from shoal.plan.readers.observation import Observation, number, optional_number

SCHEMA = "shoal.bench/1"
_SUMMARY = ("ttft", "tpot", "requests", "prompt_tokens", "output_tokens", "completed_rate")


def read_shoal_bench(report: Mapping[str, object], where: str) -> list[Observation]:
    """One observation per run, from the means of its measured requests.

    Runs whose requests were turned down or gave single tokens have no TPOT and are left out. In flight are the
    requests of a closed loop, or by Little's law the completed ones per second times the time that each took.
    """
    return [
        _observation(summary, f"{where}: {path}")
        for path, summary in _summaries(report.get("results"), "results")
        if optional_number(summary, "tpot.mean.value") and optional_number(summary, "ttft.mean.value")
    ]


def _summaries(value: object, path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    if isinstance(value, Mapping):
        if all(name in value for name in _SUMMARY):
            yield path, value
            return
        for key, item in value.items():
            yield from _summaries(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _summaries(item, f"{path}[{index}]")


def _observation(summary: Mapping[str, object], where: str) -> Observation:
    requests = number(summary, "requests", where)
    ttft, tpot = number(summary, "ttft.mean.value", where), number(summary, "tpot.mean.value", where)
    concurrency = optional_number(summary, "concurrency")
    if not concurrency:
        taken = optional_number(summary, "e2e.mean.value") or ttft
        concurrency = max(1.0, number(summary, "completed_rate", where) * taken)
    cached = optional_number(summary, "cached_tokens") or 0.0
    # What was found in the prefix cache was not computed: the prompt that prefill saw is the rest.
    prompt = max(number(summary, "prompt_tokens", where) - cached, requests)
    outputs = number(summary, "output_tokens", where) / requests
    return Observation(min(concurrency, requests), tpot, ttft, prompt / requests, outputs, where)
