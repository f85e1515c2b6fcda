"""Queues with known answers. A request of n output tokens at one seat is a service of n steps."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from sim_kit import spec

from shoal.policy.batching import SchedulerConfig
from shoal.policy.outcomes import Outcome
from shoal.sim import LinearSeconds, Simulated, SimulatedFleet, simulate
from shoal.workload.load import Load, Segment, Session, Turn
from shoal.workload.run import RunOptions

STEP = 1e-3
MEAN = 200
"""Steps of a service, on average."""
Times = npt.NDArray[np.float64]


def queue(arrivals: Times, services: npt.NDArray[np.int64], servers: int, *, shared: bool = False) -> Simulated:
    """Simulate a queue; `shared`: everybody is served at once, the more the slower."""
    scheduler = SchedulerConfig(
        num_blocks=1 << 17,
        block_size=256,
        max_model_len=1 << 20,
        token_budget=4096,
        max_sequences=4096 if shared else servers,
        headroom=0.0,
        starvation_bound=1e9,
        prefix_caching=False,
    )
    step = LinearSeconds(0.0, STEP, STEP, 0.0) if shared else LinearSeconds(STEP, 0.0, 0.0, 0.0)
    sessions = [
        Session((Turn((Segment(f"{i}", 1),), int(n)),), float(at))
        for i, (at, n) in enumerate(zip(arrivals, services, strict=True))
    ]
    load = Load(tuple(sessions), "queue", rate=1.0)
    one = SimulatedFleet(replicas=(spec(scheduler=scheduler, step=step, max_inflight=1 << 30),))
    return simulate(one, load, RunOptions(deadline=1e8))


def stays(done: Simulated) -> Times:
    assert all(ask.outcome is Outcome.OK for ask in done.asks)
    return np.asarray([(ask.last or 0) - ask.sent for ask in done.asks]) / 1e9


def drawn(count: int, load: float, servers: int = 1, seed: int = 1) -> tuple[Times, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(MEAN * STEP / load / servers, count))
    return arrivals, np.maximum(1, np.rint(rng.exponential(MEAN, count))).astype(np.int64)


def test_one_server_is_lindleys_recursion_to_the_nanosecond() -> None:
    arrivals, services = drawn(3000, 0.8)
    at = np.rint(arrivals * 1e9).astype(np.int64)
    free, expected = 0, []
    for time, steps in zip(at.tolist(), services.tolist(), strict=True):
        free = max(free, time) + steps * 1_000_000
        expected.append(free - time)
    assert np.rint(stays(queue(arrivals, services, 1)) * 1e9).astype(np.int64).tolist() == expected


def test_several_servers_are_the_kiefer_wolfowitz_recursion() -> None:
    arrivals, services = drawn(3000, 0.8, servers=4)
    busy, expected = [0.0] * 4, []
    for time, steps in zip(arrivals.tolist(), services.tolist(), strict=True):
        seat = int(np.argmin(busy))
        busy[seat] = max(busy[seat], time) + steps * STEP
        expected.append(busy[seat] - time)
    # A step that has begun is waited for, one at most.
    found = stays(queue(arrivals, services, 4))
    assert np.all(np.abs(found - np.asarray(expected)) <= 40 * STEP)
    assert found.mean() == pytest.approx(np.mean(expected), rel=0.02)


def test_what_arrives_together_shares_evenly() -> None:
    found = stays(queue(np.zeros(8), np.full(8, 50), 1, shared=True))
    # The first one has its first step to itself.
    assert found == pytest.approx(np.full(8, 8 * 50 * STEP), rel=0.02)


def erlang_c(load: float, servers: int) -> float:
    """The probability that an arrival waits in an M/M/k queue (Erlang 1917); `load` of one server."""
    offered = load * servers
    head = sum(offered**k / math.factorial(k) for k in range(servers))
    tail = offered**servers / math.factorial(servers) / (1 - load)
    return tail / (head + tail)


def regular(count: int, load: float, servers: int, *, fixed: bool) -> tuple[Times, npt.NDArray[np.int64]]:
    """Stratified draws, shuffled: means are exact, so that fewer requests reach 1 %."""
    rng = np.random.default_rng(5)
    uniform = (np.arange(count) + 0.5) / count
    gaps = -np.log1p(-uniform) * MEAN * STEP / load / servers
    services = np.full(count, MEAN) if fixed else np.maximum(1, np.rint(-np.log1p(-uniform) * MEAN))
    return np.cumsum(rng.permutation(gaps)), rng.permutation(services).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "servers", "load", "fixed", "shared"),
    [
        ("M/M/1", 1, 0.5, False, False),
        ("M/D/1", 1, 0.7, True, False),
        ("M/M/4", 4, 0.7, False, False),
        ("M/M/1-PS", 1, 0.5, False, True),
    ],
)
def test_closed_forms(name: str, servers: int, load: float, fixed: bool, shared: bool) -> None:
    """Mean stay within 1 % of the closed form (Kleinrock, Queueing Systems I, 1975; Pollaczek–Khinchine)."""
    arrivals, services = regular(300_000, load, servers, fixed=fixed)
    service = MEAN * STEP
    if shared:
        expected = service / (1 - load)
    elif fixed:
        expected = service + load * service / (2 * (1 - load))
    else:
        expected = service + erlang_c(load, servers) * service / (servers * (1 - load))
    found = float(stays(queue(arrivals, services, servers, shared=shared)).mean())
    print(f"{name}: mean stay {found:.4f} s, closed form {expected:.4f} s, {found / expected - 1:+.2%}")
    assert found == pytest.approx(expected, rel=0.01)
