"""vLLM's own log: a line every ten seconds with throughputs and the number of running requests."""

import re

from shoal.plan.readers.observation import Observation

_LINE = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<generated>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs?, Waiting: (?P<waiting>\d+) reqs?"
)
DECODING = 0.25
"""Largest ratio of prompt tokens to generated ones in an interval that is taken for decoding."""


def read_vllm_log(text: str, where: str) -> list[Observation]:
    """An observation for each interval that was all but decoding: TPOT = running ÷ generation throughput.

    Intervals with much prefill are left out, since what they took from decoding cannot be told; so are those whose
    running count changed a lot from one line to the next, since the throughput is an average over the interval.
    """
    found: list[Observation] = []
    before = 0.0
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.search(line)
        if match is None:
            continue
        prompt, generated, running = (float(match[name]) for name in ("prompt", "generated", "running"))
        steady = before > 0 and abs(running - before) <= 0.25 * running
        before = running
        if running and generated and steady and prompt <= DECODING * generated:
            found.append(Observation(running, running / generated, source=f"{where}, line {number}"))
    return found
