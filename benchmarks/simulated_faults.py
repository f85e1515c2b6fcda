"""Fleets in virtual time for a million replica-hours, with every kind of fault: is a request ever lost?

    python benchmarks/simulated_faults.py [--worlds 104] [--replicas 50] [--hours 200] [--append FILE]

Every world is drawn from its number: split pools or not, memory, policy of the router, network, load. Requests come
in bursts; each is followed to its fate. Books (leases, KV blocks, hand-overs, Little's law) are proven at the end
of every world, by `sim.world`; a world whose books don't balance is named, and can be run by itself with `--first`.
"""

import argparse
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from machine import append, describe
from shoal.policy.admission import AdmissionConfig
from shoal.policy.batching import SchedulerConfig
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import RouterConfig
from shoal.policy.split import HandoffCounts, SplitConfig
from shoal.sim import FaultRates, LinearSeconds, ReplicaSpec, SimulatedFleet, SimulationOptions, simulate
from shoal.sim.faults import KINDS
from shoal.workload.load import Load, Segment, Session, Turn
from shoal.workload.run import RunOptions

STEP = LinearSeconds(step=6e-3, prompt_token=40e-6, sequence=50e-6, cached_token=30e-9, pair=1e-9)
_POLICIES = ("default", "default", "round_robin", "power_of_two", "least_load", "session")


@dataclass
class Totals:
    """What happened in one world, or in all."""

    replica_hours: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    legs: Counter[str] = field(default_factory=Counter)
    handed: Counter[str] = field(default_factory=Counter)
    processor: float = 0.0
    events: int = 0

    def add(self, other: "Totals") -> None:
        """Take another world in."""
        self.replica_hours += other.replica_hours
        self.processor += other.processor
        self.events += other.events
        for mine, theirs in (
            (self.faults, other.faults),
            (self.fates, other.fates),
            (self.legs, other.legs),
            (self.handed, other.handed),
        ):
            mine.update(theirs)


def drawn_fleet(draw: random.Random, replicas: int) -> SimulatedFleet:
    """A fleet that could be."""
    scheduler = SchedulerConfig(
        num_blocks=draw.choice([120, 175, 750]),
        block_size=64,
        max_model_len=8192,
        token_budget=draw.choice([256, 2048]),
        max_sequences=draw.choice([4, 64]),
        starvation_bound=draw.choice([2.0, 30.0]),
    )
    prefill, decode = 0, 0
    if draw.random() < 0.5:
        prefill, decode = draw.randint(1, replicas // 3), draw.randint(replicas // 3, replicas // 2)
    back = draw.choice([0.0, 0.001])
    specs = tuple(
        ReplicaSpec(
            name=f"r{i}",
            scheduler=scheduler,
            step=STEP,
            role="prefill" if i < prefill else "decode" if i < prefill + decode else "both",
            max_inflight=draw.choice([2, 256]),
            front=0.003,
            back=back,
            kv_token_bytes=131_072.0,
        )
        for i in range(replicas)
    )
    return SimulatedFleet(
        replicas=specs,
        router=RouterConfig(policy=draw.choice(_POLICIES), seed=draw.randrange(1000)),
        admission=AdmissionConfig(ttft_target=draw.choice([None, 5.0])),
        split=SplitConfig(threshold_tokens=draw.choice([32, 256])),
        link_bytes=draw.choice([1e8, 1.25e9, 12.5e9]),
    )


def sessions(draw: random.Random, count: int, seconds: float) -> Iterator[Session]:
    """Conversations of one to three turns, in bursts."""
    starts: list[float] = []
    while len(starts) < count:
        burst = draw.uniform(0.0, seconds)
        starts += [burst + draw.expovariate(0.2) for _ in range(draw.choice([1, 5, 60]))]
    for number, at in enumerate(sorted(starts)):
        turns = [
            Turn(
                (
                    *((Segment(f"system {draw.randrange(4)}", 64),) if turn == 0 else ()),
                    Segment(f"{number}/{turn}", draw.choice([20, 200, 900])),
                ),
                draw.choice([1, 100, 1500]),
                draw.uniform(0.0, 20.0) if turn else 0.0,
            )
            for turn in range(draw.choice([1, 1, 3]))
        ]
        yield Session(tuple(turns), at)


def run_world(number: int, replicas: int, hours: float, requests: float, per_hour: float) -> Totals:
    """Simulate one world. Raises `sim.world.Books` or `AssertionError` if its books don't balance."""
    draw = random.Random(number)
    began = time.process_time()
    fleet = drawn_fleet(draw, replicas)
    asked = int(requests * replicas * hours / 1.67)
    load = Load(tuple(sessions(draw, asked, hours * 3600.0)), f"world {number}", asked / hours / 3600.0)
    rates = FaultRates(per_hour=dict.fromkeys(KINDS, per_hour))
    faults = rates.draw([spec.name for spec in fleet.replicas], hours, number)
    options = SimulationOptions(faults=faults, seed=number, horizon=hours * 3600.0 + 7200.0)
    done = simulate(fleet, load, RunOptions(deadline=draw.choice([60.0, 600.0])), options)
    totals = Totals(replicas * done.seconds / 3600.0, events=done.events)
    totals.faults.update(dict(done.faults))
    totals.legs.update(given_up=done.given_up, hangs=done.hangs, ejections=done.ejections)
    for ask in done.asks:
        if ask.outcome is None:
            raise AssertionError(f"world {number}: request {ask.index} was lost")
        whole = ask.outcome is Outcome.OK
        if whole and ask.tokens != ask.output:
            raise AssertionError(f"world {number}: request {ask.index} is {ask.outcome} with {ask.tokens} tokens")
        fate = "answered in whole" if whole else f"{ask.outcome}, {'begun' if ask.first else 'no output'}"
        totals.fates[fate] += 1
        totals.legs.update(
            retried=len(ask.faults) - ask.continued, continued=ask.continued, preemptions=ask.preemptions
        )
    counts = done.handoffs
    totals.handed.update(
        handed=counts.handed, taken=counts.taken, released=counts.released, lost=counts.lost, live=counts.live
    )
    totals.processor = time.process_time() - began
    return totals


def table(totals: Totals, per_hour: float) -> str:
    """Faults, fates and books of all worlds."""
    lines = ["| fault | struck |", "|---|---|"]
    lines += [f"| {kind} | {totals.faults[kind]:,} |" for kind in KINDS]
    lines += ["", "| fate of a request | requests |", "|---|---|"]
    lines += [f"| {fate} | {count:,} |" for fate, count in totals.fates.most_common()]
    lines += ["| lost | 0 |", f"| all | {totals.fates.total():,} |", ""]
    handed = HandoffCounts(*(totals.handed[name] for name in ("handed", "taken", "released", "lost")))
    legs = totals.legs
    lines.append(
        f"{totals.replica_hours:,.0f} replica-hours, {totals.faults.total():,} faults ({per_hour:g} of each kind "
        f"per replica-hour), {totals.events:,} events, {totals.processor:,.0f} processor seconds. "
        f"{legs['retried']:,} legs were tried again elsewhere, {legs['continued']:,} streams carried on, "
        f"{legs['preemptions']:,} preemptions, {legs['hangs']:,} hangs found by silence, "
        f"{legs['ejections']:,} stragglers set aside, {legs['given_up']:,} replicas given up. "
        f"KV handed over {handed.handed:,} times = {handed.taken:,} taken + {handed.released:,} released + "
        f"{handed.lost:,} lost + {handed.live:,} live. The books of every world balanced."
    )
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=104)
    parser.add_argument("--first", type=int, default=0, help="number of the first world")
    parser.add_argument("--replicas", type=int, default=50)
    parser.add_argument("--hours", type=float, default=200.0)
    parser.add_argument("--requests", type=float, default=0.3, help="per replica-hour")
    parser.add_argument("--per-hour", type=float, default=0.05, help="faults of each kind per replica-hour")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--append", type=Path)
    return parser.parse_args()


def main() -> None:
    asked = options()
    facts, began, totals, broken = describe(), time.monotonic(), Totals(), []
    numbers = range(asked.first, asked.first + asked.worlds)
    with ProcessPoolExecutor(asked.workers) as pool:
        worlds = {
            pool.submit(run_world, n, asked.replicas, asked.hours, asked.requests, asked.per_hour): n
            for n in numbers
        }
        for count, world in enumerate(as_completed(worlds), start=1):
            try:
                totals.add(world.result())
            except AssertionError as error:
                broken.append(worlds[world])
                print(f"world {worlds[world]}: {error}", flush=True)
            print(
                f"{count} of {len(numbers)} worlds, {totals.replica_hours:,.0f} replica-hours, "
                f"{totals.fates.total():,} requests, {totals.faults.total():,} faults, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    if broken:
        sys.exit(f"the books of worlds {sorted(broken)} don't balance")
    facts += [("command", shlex.join(["python", *sys.argv])), ("took", f"{time.monotonic() - began:.0f} s")]
    body = table(totals, asked.per_hour)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"{totals.replica_hours:,.0f} replica-hours, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
