"""Where prefill and decode in pools of their own pay, and where they don't: the planner's verdicts, by queues."""

import random
from functools import cache

import pytest

from shoal.plan.api import find_model
from shoal.policy.split import SplitConfig
from shoal.sim import ReplicaSpec, Simulated, SimulatedFleet, simulate
from shoal.sim.events import Events
from shoal.sim.hardware import Machine, PlannedReplica, planned_replica
from shoal.sim.network import Network
from shoal.specs.catalog import load_catalog
from shoal.workload.load import Load, Segment, Session, Turn
from shoal.workload.objectives import Objectives
from shoal.workload.run import RunOptions


@cache
def replica() -> PlannedReplica:
    catalog = load_catalog()
    return planned_replica(
        Machine(model=find_model("llama-3.1-8b"), accelerator=catalog.accelerator("h100"), block_size=64), catalog
    )


def h100s(*roles: str, link: float = 50e9) -> SimulatedFleet:
    """Llama-3.1-8B, one H100 each, with links of so many bytes per second."""
    made = replica()
    specs = tuple(
        ReplicaSpec(name=f"r{i}", scheduler=made.scheduler, step=made.step, role=role, max_inflight=4096,
                    kv_token_bytes=made.kv_token_bytes)
        for i, role in enumerate(roles)
    )  # fmt: skip
    return SimulatedFleet(replicas=specs, split=SplitConfig(threshold_tokens=64), link_bytes=link)


WHOLE, SPLIT = ("both",) * 4, ("prefill", "prefill", "decode", "decode")


def poisson(rate: float, prompt: int, output: int, count: int = 200) -> Load:
    draw, at, sessions = random.Random(1), 0.0, []
    for i in range(count):
        at += draw.expovariate(rate)
        sessions.append(Session((Turn((Segment(f"p{i}", prompt),), output),), at))
    return Load(tuple(sessions), "poisson", rate)


def met(on: SimulatedFleet, load: Load, objectives: Objectives) -> float:
    """The share of requests within their targets."""
    done: Simulated = simulate(on, load, RunOptions(deadline=120.0))
    return sum(objectives.met(record) for record in done.result.records) / len(done.result.records)


def test_short_prompts_on_one_class_are_not_split() -> None:
    load, targets = poisson(200.0, 200, 200, 800), Objectives(ttft=1.0, tpot=0.0115)
    assert met(h100s(*WHOLE), load, targets) > 0.99
    assert met(h100s(*SPLIT), load, targets) < 0.9


def test_long_prompts_with_a_strict_tpot_are_split() -> None:
    """Whole, every prompt of others stops a replica's streams for a quarter of a second."""
    load, targets = poisson(5.0, 8192, 256), Objectives(ttft=4.0, tpot=0.012)
    assert met(h100s(*SPLIT), load, targets) > met(h100s(*WHOLE), load, targets) + 0.2


def test_over_a_slow_link_they_are_not() -> None:
    """A prompt's KV is a gigabyte: nine seconds over 1 Gbit/s."""
    load, targets = poisson(5.0, 8192, 256), Objectives(ttft=4.0, tpot=0.012)
    assert met(h100s(*SPLIT, link=1.25e8), load, targets) < 0.05 < met(h100s(*WHOLE), load, targets)


def test_transfers_share_links_fairly() -> None:
    events, ended = Events(), {}
    network = Network(events)
    for name, bandwidth in (("a", 100.0), ("b", 100.0), ("c", 1000.0), ("d", 20.0)):
        network.add(name, bandwidth)

    def begin(name: str, source: str, target: str, size: float) -> None:
        network.begin(source, target, size, lambda time: ended.setdefault(name, time / 1e9), events.now)

    # d takes 20 from a's 100, which leaves 80 for the other one.
    begin("narrow", "a", "d", 40.0)
    begin("wide", "a", "c", 200.0)
    begin("other way", "c", "a", 100.0)
    events.run(10 * 10**9)
    # 2 s at 80, and 40 bytes at 100.
    assert ended == pytest.approx({"other way": 1.0, "narrow": 2.0, "wide": 2.4})
    network.stand_still("c", True, events.now)
    begin("waits", "a", "c", 100.0)
    events.run(20 * 10**9)
    assert "waits" not in ended
    network.stand_still("c", False, events.now)
    network.slow_down("a", 4.0, events.now)
    events.run(30 * 10**9)
    assert ended["waits"] == pytest.approx(24.0)
