"""Queues on paper: screening formulas for open-loop traffic, percentiles, speculation, chunked prefill, matching.

These rank candidates cheaply; tails are approximations. Rates are per second, times in seconds.
"""

import math
from dataclasses import dataclass

from shoal.specs.errors import SpecError


def _positive(field: str, value: float, zero: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise SpecError(field, value, "a finite number, " + ("0 or more" if zero else "above 0"))


def mg1_wait(rate: float, service_mean: float, service_second_moment: float) -> float:
    """Mean wait of an M/G/1 queue: λE[S²]/(2(1−ρ)) (Pollaczek–Khinchine); infinite at ρ ≥ 1."""
    _positive("queue.rate", rate, zero=True)
    _positive("queue.service_mean", service_mean)
    if service_second_moment < service_mean**2 * (1 - 1e-12):
        raise SpecError("queue.service_second_moment", service_second_moment, "at least the mean squared")
    load = rate * service_mean
    return math.inf if load >= 1 else rate * service_second_moment / (2 * (1 - load))


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival at M/M/m waits, `offered` = λ/μ erlangs; 1 where offered ≥ servers."""
    if servers < 1:
        raise SpecError("queue.servers", servers, "1 or more")
    _positive("queue.offered", offered, zero=True)
    if offered >= servers:
        return 1.0
    blocking = 1.0
    for count in range(1, servers + 1):  # the recursion of Erlang B stays in range where factorials do not
        blocking = offered * blocking / (count + offered * blocking)
    return blocking / (1.0 - (offered / servers) * (1.0 - blocking))


def ggm_wait(
    rate: float, service_mean: float, servers: int = 1, arrival_scv: float = 1.0, service_scv: float = 1.0
) -> float:
    """Mean wait of G/G/m (Allen-Cunneen): the M/M/m wait × (Ca² + Cs²)/2, squared coefficients of variation."""
    _positive("queue.rate", rate, zero=True)
    _positive("queue.service_mean", service_mean)
    _positive("queue.arrival_scv", arrival_scv, zero=True)
    _positive("queue.service_scv", service_scv, zero=True)
    offered = rate * service_mean
    if offered >= servers:
        return math.inf
    wait = erlang_c(servers, offered) * service_mean / (servers - offered)
    return wait * (arrival_scv + service_scv) / 2


def wait_quantile(share: float, wait_mean: float, delayed: float) -> float:
    """The wait that this share of arrivals does not exceed; a share `delayed` waits, exponentially distributed."""
    if not 0 < share < 1:
        raise SpecError("queue.quantile", share, "a share between 0 and 1, both excluded")
    if not 0 <= delayed <= 1:
        raise SpecError("queue.delayed", delayed, "a probability")
    if delayed == 0 or share <= 1 - delayed or wait_mean == 0:
        return 0.0
    return math.inf if math.isinf(wait_mean) else wait_mean / delayed * math.log(delayed / (1 - share))


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of an open-loop replica."""

    ttft: float
    tpot: float
    utilization: float
    """Of the prefill server; 1 or more means that queues grow without end."""


def open_loop(
    rate: float,
    prefill: float,
    decode_step: float,
    share: float = 0.5,
    servers: int = 1,
    service_scv: float = 0.5,
    decode_share: float = 0.0,
) -> Latency:
    """TTFT and TPOT at quantile `share` of requests that arrive by a Poisson process.

    `prefill` seconds of a prompt are served first come, first served by `servers` replicas, of whose time decoding
    takes `decode_share`; a decode step is stretched by what prefill takes in turn.
    """
    if not 0 <= decode_share < 1:
        raise SpecError("queue.decode_share", decode_share, "a share from 0 up to, not including, 1")
    service = prefill / (1 - decode_share)
    load = rate * service / servers
    if load >= 1:
        return Latency(math.inf, math.inf, load)
    wait = ggm_wait(rate, service, servers, 1.0, service_scv)
    delayed = erlang_c(servers, rate * service)
    busy = rate * prefill / servers
    return Latency(service + wait_quantile(share, wait, delayed) + decode_step, decode_step / (1 - busy), load)


def accepted_length(acceptance: float, drafts: int) -> float:
    """Tokens a verified step yields: (1 − γ^{K+1})/(1 − γ) with K drafts each accepted with probability γ."""
    if not 0 <= acceptance <= 1:
        raise SpecError("speculation.acceptance", acceptance, "a probability")
    if drafts < 0:
        raise SpecError("speculation.drafts", drafts, "0 or more")
    if acceptance == 1:
        return drafts + 1.0
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def speculative_tpot(verify_step: float, draft_step: float, acceptance: float, drafts: int) -> float:
    """Seconds a token with K drafts: (verify + K·draft)/E[length]."""
    return (verify_step + drafts * draft_step) / accepted_length(acceptance, drafts)


def chunked_ttft(prompt: int, chunk: int, mixed_step: float, wait: float = 0.0) -> float:
    """TTFT with prefill in chunks: ⌈n/c⌉·t_mix + wait."""
    if prompt < 1 or chunk < 1:
        raise SpecError("chunked.prompt or chunk", (prompt, chunk), "1 token or more")
    return math.ceil(prompt / chunk) * mixed_step + wait


def chunked_tpot(mixed_steps: float, mixed_step: float, decode_steps: float, decode_step: float) -> float:
    """TPOT while some steps carry a chunk: (N_mix·t_mix + N_dec·t_dec)/N."""
    total = mixed_steps + decode_steps
    _positive("chunked.steps", total)
    return (mixed_steps * mixed_step + decode_steps * decode_step) / total


@dataclass(frozen=True, slots=True)
class Match:
    """Workers of a split deployment whose rates fit."""

    prefill: int
    decode: int
    rate: float
    """Requests a second: the smaller of the two pools' rates."""
    per_device: float


def match_rates(
    prefill_rate: float, decode_rate: float, prefill_devices: int, decode_devices: int, budget: int
) -> Match:
    """x prefill and y decode workers within `budget` devices that maximise min(x·R_p, y·R_d)/devices.

    Rates are requests a second of one worker. Of equals, the smallest wins.
    """
    _positive("match.prefill_rate", prefill_rate)
    _positive("match.decode_rate", decode_rate)
    if min(prefill_devices, decode_devices) < 1 or budget < prefill_devices + decode_devices:
        raise SpecError("match.budget", budget, f"at least {prefill_devices + decode_devices}, one worker of each")
    best: Match | None = None
    for x in range(1, (budget - decode_devices) // prefill_devices + 1):
        for y in range(1, (budget - x * prefill_devices) // decode_devices + 1):
            rate = min(x * prefill_rate, y * decode_rate)
            found = Match(x, y, rate, rate / (x * prefill_devices + y * decode_devices))
            if best is None or found.per_device > best.per_device * (1 + 1e-9):
                best = found
    if best is None:
        raise SpecError("match.budget", budget, "devices for one worker of each pool")
    return best


def goodput(requests_met: float, seconds: float) -> float:
    """Requests a second that met all objectives."""
    _positive("goodput.seconds", seconds)
    return requests_met / seconds
