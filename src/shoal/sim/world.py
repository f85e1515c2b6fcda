"""A simulation from its start to its end: builds the world, runs it, checks its books, hands out what happened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.policy.batching import ChainHasher
from shoal.policy.outcomes import Outcome
from shoal.policy.split import HandoffCounts
from shoal.sim.asks import Ask
from shoal.sim.clients import ClosedLoop, OpenLoop
from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.faults import Fault, FaultKind, Faults
from shoal.sim.fleet import SimulatedFleet
from shoal.sim.gateway import SimulatedGateway
from shoal.sim.health import HealthSweeps
from shoal.sim.legs import SimulatedAccount
from shoal.sim.replica import SimulatedReplica
from shoal.sim.samples import Sample, Sampler, TokenGaps
from shoal.specs.errors import SpecError
from shoal.workload.load import Load
from shoal.workload.records import Phase, Record
from shoal.workload.run import RunOptions, RunResult, open_window

Loop = OpenLoop | ClosedLoop
_SLICE = nanoseconds(10.0)
_POINTS = 8
"""Moments of an answer that a record keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """How a load is simulated. Times in simulated seconds."""

    seed: int = 0
    """Of faults and restarts; the load has its own."""
    exact: bool = False
    """Simulate every step by itself: the same result, far slower."""
    horizon: float = 30 * 86_400.0
    """The simulation stops then, with what there is."""
    sample: float | None = None
    """Between two samples of every replica; None: none are taken."""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Simulated:
    """What happened."""

    result: RunResult
    asks: Sequence[Ask]
    samples: tuple[Sample, ...]
    gaps: TokenGaps
    seconds: float
    """Simulated."""
    steps: int
    jumped: int
    """Steps that were not simulated one by one."""
    events: int
    hit_tokens: int
    queried_tokens: int
    preemptions: int
    hangs: int
    ejections: int
    crashes: int
    busy: tuple[tuple[str, float], ...]
    """Share of the simulated time that each replica computed."""
    handoffs: HandoffCounts = field(default_factory=HandoffCounts)
    """KV that prefill replicas handed over."""
    faults: tuple[tuple[FaultKind, int], ...] = ()
    """How many of each kind found their replica alive."""
    given_up: int = 0
    """Replicas that crashed too often."""
    in_system: float = field(default=0.0)
    """Requests in the system, mean over time: Little's law has been checked with it."""


class Books(AssertionError):
    """The books of a simulation don't balance: a bug of Shoal."""


def simulate(
    fleet: SimulatedFleet,
    load: Load,
    run: RunOptions,
    options: SimulationOptions | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> Simulated:
    """Simulate a load on a fleet. Raises SpecError for settings that can't be.

    Args:
        on_progress: told simulated seconds and requests ended, every few simulated seconds.
    """
    options = options or SimulationOptions()
    if run.concurrency is None and run.warmup >= len(load.sessions):
        raise SpecError("warmup", run.warmup, f"fewer than the {len(load.sessions)} sessions")
    world = World(fleet, options)
    loop: Loop
    if run.concurrency is not None and load.chained:
        accepted = "an open loop: requests of this load wait for one another"
        raise SpecError("concurrency", run.concurrency, accepted)
    if run.concurrency is None:
        loop = OpenLoop(load, run, world.gateway, world.events)
    else:
        loop = ClosedLoop(load, run, world.gateway, world.events)
    loop.start()
    whole = world.run(loop, nanoseconds(options.horizon), on_progress)
    world.check(loop, whole)
    return world.report(loop, load, run, whole)


class World:
    """Everything that is simulated."""

    def __init__(self, fleet: SimulatedFleet, options: SimulationOptions) -> None:
        self.events = Events()
        hasher = ChainHasher(fleet.block_size)
        self.gateway = SimulatedGateway(fleet, self.events, hasher)
        self.gaps = TokenGaps()
        accounts = self.gateway.accounts
        for spec in fleet.replicas:
            replica = SimulatedReplica(
                spec.name, spec.scheduler, spec.step, hasher, self.events, self.gateway, jumps=not options.exact
            )
            replica.on_steps = self.gaps.add
            peers = accounts.peers(spec.pool, min(spec.models))
            accounts.insert(SimulatedAccount(spec, replica, fleet.breaker, peers))
        self.health = HealthSweeps(self.gateway, self.events, options.seed)
        self.health.start()
        self.sampler = Sampler(self.gateway, self.events, options.sample)
        self.sampler.start()
        self.faults = Faults(options.faults, self.gateway, self.health, self.events)
        self.faults.start()

    def run(self, loop: Loop, horizon: int, on_progress: Callable[[float, int], None] | None) -> bool:
        """Run until all requests have their fate; whether that is so at `horizon`."""
        events = self.events
        events.stop_when(lambda: loop.finished)
        until = 0
        while not loop.finished and events.now < horizon:
            until = min(horizon, max(until, events.now) + _SLICE)
            events.run(until)
            if on_progress is not None:
                on_progress(events.now / NANOSECONDS, len(loop.asks) - self.gateway.live)
        return loop.finished

    # Books

    def check(self, loop: Loop, whole: bool) -> None:
        """Prove that nothing was lost: `Books` if it was."""
        gateway = self.gateway
        open_asks = [ask for ask in loop.asks if ask.outcome is None]
        if len(open_asks) != gateway.live:
            raise Books(f"{len(open_asks)} requests without a fate, {gateway.live} counted")
        gateway.accounts.ledger.check()
        gateway.splitter.check([*gateway.legs.values()])
        if gateway.accounts.ledger.live() != len(gateway.legs):
            raise Books(f"{gateway.accounts.ledger.live()} leases for {len(gateway.legs)} legs")
        for account in gateway.accounts.replicas:
            account.replica.settle(self.events.now)
            account.replica.scheduler.check()
            legs = {leg.number for leg in gateway.legs_on(account)}
            if account.state.inflight != len(legs):
                raise Books(f"{account.name} has {len(legs)} legs, counted as {account.state.inflight}")
            orphans = account.replica.live - legs - gateway.splitter.releases
            if orphans:
                raise Books(f"{account.name} computes for nobody: {sorted(orphans)}")
        if whole and isinstance(loop, OpenLoop) and (gateway.live or gateway.dispatch.waiting):
            raise Books(f"{gateway.live} requests are left, {gateway.dispatch.waiting} of them queued")

    def in_system(self, asks: Sequence[Ask]) -> float:
        """Requests in the system, mean over time, by counting; equal to arrivals × mean stay, or `Books`."""
        end = self.events.now
        if not end:
            return 0.0
        changes = sorted([(a.sent, 1) for a in asks] + [(end if a.ended is None else a.ended, -1) for a in asks])
        area = level = before = 0
        for time, change in changes:
            area += level * (time - before)
            level, before = level + change, time
        stays = sum((end if a.ended is None else a.ended) - a.sent for a in asks)
        if area != stays or level:
            raise Books(f"Little's law: {area} request nanoseconds in the system, {stays} by stays")
        return area / end

    # What happened

    def report(self, loop: Loop, load: Load, run: RunOptions, whole: bool) -> Simulated:
        """Everything of interest."""
        records = tuple(sorted(map(_record, loop.asks), key=lambda r: (r.scheduled, r.index)))
        notes = (*load.notes, *([] if whole else ["the simulation was stopped at its horizon"]))
        if isinstance(loop, ClosedLoop):
            start = loop.window.opened if loop.window.opened is not None else self.events.now / NANOSECONDS
            end = max((r.ended for r in records if r.phase is Phase.MEASURED), default=start)
            name = f"closed loop, {run.concurrency} in flight; {load.description}"
            if len(records) > load.requests:
                notes += ("the load was repeated: later requests may find their prompts cached",)
            result = RunResult(records, start, end, name, run.concurrency, None, not whole, notes)
        else:
            start, end = open_window(load, records, run.warmup)
            notes += loop.notes
            result = RunResult(records, start, end, load.description, None, load.rate, not whole, notes)
        replicas = [account.replica for account in self.gateway.accounts.replicas]
        stats = [replica.scheduler.stats() for replica in replicas]
        spent = max(1, self.events.now)
        return Simulated(
            result=result,
            asks=loop.asks,
            samples=tuple(self.sampler.samples),
            gaps=self.gaps,
            seconds=self.events.now / NANOSECONDS,
            steps=sum(r.counts.steps for r in replicas),
            jumped=sum(r.counts.jumped for r in replicas),
            events=self.events.done,
            hit_tokens=sum(s.hit_tokens for s in stats),
            queried_tokens=sum(s.queried_tokens for s in stats),
            preemptions=sum(s.preemptions for s in stats),
            hangs=self.health.hangs,
            ejections=self.health.ejections,
            crashes=sum(r.counts.crashes for r in replicas),
            busy=tuple((r.name, r.counts.busy / spent) for r in replicas),
            handoffs=self.gateway.splitter.counts,
            faults=tuple(self.faults.struck.items()),
            given_up=self.health.given_up,
            in_system=self.in_system(loop.asks),
        )


def _record(ask: Ask) -> Record:
    ended = ask.ended if ask.ended is not None else ask.deadline
    return Record(
        index=ask.index,
        session=ask.session,
        turn=ask.turn,
        phase=ask.phase,
        scheduled=ask.scheduled / NANOSECONDS,
        sent=ask.sent / NANOSECONDS,
        ended=ended / NANOSECONDS,
        events=_moments(ask),
        last=None if ask.last is None else ask.last / NANOSECONDS,
        outcome=ask.outcome or Outcome.CANCELLED,
        status=ask.status,
        error=ask.error if ask.outcome is not None else "the simulation was stopped",
        asked_prompt=ask.prompt,
        asked_output=ask.output,
        prompt_tokens=ask.prompt,
        output_tokens=ask.tokens,
        output_counted=True,
        cached_tokens=ask.cached,
        finish_reason="length" if ask.outcome is Outcome.OK else None,
        replica=ask.replica,
        sampled=True,
        model=ask.model,
        priority=ask.priority,
    )


def _moments(ask: Ask) -> tuple[float, ...]:
    if ask.first is None:
        return ()
    count = min(_POINTS, ask.tokens)
    if ask.last is None or count < 2:
        return (ask.first / NANOSECONDS,)
    step = (ask.last - ask.first) / (count - 1)
    return tuple((ask.first + i * step) / NANOSECONDS for i in range(count))
