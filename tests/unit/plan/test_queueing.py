"""Queueing formulas against cases with known answers and against a simulated queue."""

import math
import random

import pytest

from shoal.plan.queueing import (
    accepted_length,
    chunked_tpot,
    chunked_ttft,
    erlang_c,
    ggm_wait,
    match_rates,
    mg1_wait,
    open_loop,
    speculative_tpot,
    wait_quantile,
)
from shoal.specs.errors import SpecError


def test_mg1_of_exponential_service_is_mm1() -> None:
    assert mg1_wait(0.5, 1.0, 2.0) == pytest.approx(1.0)  # ρ/(μ−λ)
    assert mg1_wait(0.5, 1.0, 1.0) == pytest.approx(0.5)  # deterministic service waits half as long
    assert mg1_wait(1.0, 1.0, 2.0) == math.inf


def test_erlang_c_of_a_textbook_case() -> None:
    # m = 2 servers, 1 erlang: P(wait) = 1/3.
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(4, 4.0) == 1.0


def test_ggm_agrees_with_pollaczek_khinchine_for_one_server() -> None:
    rate, mean, scv = 0.6, 1.2, 0.4
    assert ggm_wait(rate, mean, 1, 1.0, scv) == pytest.approx(mg1_wait(rate, mean, (1 + scv) * mean**2))


def _simulated_waits(rate: float, mean: float, servers: int, count: int) -> list[float]:
    rng = random.Random(7)
    free, now, waits = [0.0] * servers, 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        start = max(now, min(free))
        free[free.index(min(free))] = start + rng.expovariate(1 / mean)
        waits.append(start - now)
    return waits


def test_mm3_against_a_simulated_queue() -> None:
    waits = sorted(_simulated_waits(2.4, 1.0, 3, 60_000))
    mean = ggm_wait(2.4, 1.0, 3)
    assert sum(waits) / len(waits) == pytest.approx(mean, rel=0.12)
    p90 = wait_quantile(0.9, mean, erlang_c(3, 2.4))
    assert waits[int(0.9 * len(waits))] == pytest.approx(p90, rel=0.12)


def test_wait_of_those_who_need_not_wait_is_zero() -> None:
    assert wait_quantile(0.5, 1.0, 0.3) == 0.0


def test_open_loop_says_when_it_cannot_keep_up() -> None:
    calm, busy = open_loop(0.1, 1.0, 0.02), open_loop(0.9, 1.0, 0.02)
    assert calm.ttft < busy.ttft
    assert calm.tpot < busy.tpot
    assert open_loop(1.1, 1.0, 0.02).ttft == math.inf


def test_speculation() -> None:
    assert accepted_length(0.0, 4) == 1.0
    assert accepted_length(1.0, 4) == 5.0
    assert accepted_length(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert speculative_tpot(0.02, 0.001, 0.8, 3) < 0.02


def test_chunked_prefill() -> None:
    assert chunked_ttft(8193, 2048, 0.1, wait=0.5) == pytest.approx(5 * 0.1 + 0.5)
    assert chunked_tpot(1, 0.1, 3, 0.02) == pytest.approx(0.04)


def test_match_uses_every_device_only_where_it_helps() -> None:
    found = match_rates(2.0, 1.0, prefill_devices=8, decode_devices=8, budget=32)
    assert (found.prefill, found.decode) == (1, 2)
    assert found.per_device == pytest.approx(2 / 24)
    with pytest.raises(SpecError, match=r"match\.budget"):
        match_rates(1, 1, 8, 8, 15)


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_bad_rates_are_refused_by_field(bad: float) -> None:
    with pytest.raises(SpecError, match=r"queue\.rate"):
        mg1_wait(bad, 1.0, 1.0)
