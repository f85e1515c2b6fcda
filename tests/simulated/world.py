"""The fleet's own code in a simulated world: one run from one seed.

clients ─► network ─► gateway, relay, registry, health, supervisor (the real ones) ─► network ─► replicas
"""

import asyncio
import errno
import random
from collections import Counter
from typing import Any

from shoal.fleet.config import FleetConfig
from shoal.fleet.gateway import Gateway, RequestRecord
from shoal.fleet.service import FleetService
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision
from simulated.client import Call, Client, draw_call
from simulated.invariants import check_books, check_no_orphans, check_nothing_left, is_whole, open_breakers
from simulated.kv_feed import Feed
from simulated.network import Network
from simulated.processes import ProcessTable
from simulated.programs import AttachedProgram, ReplicaProgram
from simulated.record import Journal, Run
from simulated.settings import FIRST_ATTACHED_PORT, MAX_INFLIGHT, MAX_REPLICAS, fleet_config
from simulated.troubles import ROUTERS, Plan, Troubles
from simulated.verdicts import Violation, judge
from simulated.virtual_loop import VirtualLoop

RECOVERY_SECONDS = 60.0
"""After the last fault the fleet must be whole again within this."""


class _Finished:
    """What gateways say of requests that have ended."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def on_decision(self, record: RequestRecord, decision: Decision) -> None: ...
    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None: ...
    def on_distrust(self, replica: str, trust: float) -> None: ...

    def on_finished(self, record: RequestRecord) -> None:
        run, finished = self._world.run, self._world.finished
        finished[record.request_id] += 1
        if finished[record.request_id] > 1:
            self._world.violate(f"{record.request_id} was answered twice")
        run.continued += record.continued
        run.retried += max(0, record.attempts - 1)


class World:
    """Made for one run, in its loop."""

    def __init__(self, loop: VirtualLoop, run: Run) -> None:
        self.loop, self.run = loop, run
        seed = str(run.seed)
        self.draws = random.Random(f"{seed}/world")
        self.journal = run.journal = Journal(loop.time)
        self.network = Network(loop, seed, self.journal)
        self.processes = ProcessTable(loop, self._program)
        loop.network, loop.processes = self.network, self.processes
        self.plan = Plan.draw(random.Random(f"{seed}/plan"))
        self.programs: list[ReplicaProgram] = []
        self.seeds: dict[str, Any] = {}
        self.service: FleetService
        self._calls = 0
        self._calm = asyncio.Event()
        self.troubles = Troubles(self)
        self.gateways: list[Gateway] = []
        self.finished: Counter[str] = Counter()
        self.closing = self.ended = self.over = False
        self._feeds: dict[int, Feed] = {}
        self.port = 0
        self._load_tasks: list[asyncio.Task[None]] = []

    def violate(self, text: str) -> None:
        self.journal.note("violation", text)
        self.run.violations.append(text)

    def _program(self, argv: tuple[str, ...]) -> ReplicaProgram:
        if self.troubles.active and self.draws.random() < self.plan.failed_start / 4:
            raise OSError(errno.EAGAIN, "no process can be started")
        program = ReplicaProgram(self, name=argv[-2], port=int(argv[-1]))
        self.programs.append(program)
        return program

    def feed(self, port: int) -> Feed:
        if port not in self._feeds:
            self._feeds[port] = Feed(random.Random(f"{self.run.seed}/feed {port}"))
        return self._feeds[port]

    def attach(self, name: str, port: int) -> None:
        """Start a replica that isn't the supervisor's."""
        program = AttachedProgram(self, name=name, port=port)
        self.programs.append(program)
        program.begin()

    def _reread(self) -> FleetConfig:
        """What a reload finds: another size, or another router."""
        draws, old = self.draws, self.service.config
        replicas = draws.randint(1, MAX_REPLICAS) if draws.random() < 0.7 else old.pools[0].count
        policy = draws.choice(ROUTERS) if draws.random() < 0.5 else old.router.policy
        return fleet_config(self.plan, replicas=replicas, policy=policy)

    def _equip(self, service: FleetService, gateway: Gateway) -> Gateway:
        gateway.observers.all.append(_Finished(self))
        self.gateways.append(gateway)
        return gateway

    # Load.

    async def _client(self, number: int) -> None:
        draws = random.Random(f"{self.run.seed}/client {number}")
        client = Client(self.network, self.port, draws)
        try:
            while not self._calm.is_set():
                await asyncio.sleep(draws.expovariate(2.0))
                await self.call(client, draw_call(draws, self._number()))
        finally:
            client.close()

    def _number(self) -> int:
        self._calls += 1
        return self._calls

    async def call(self, client: Client, call: Call) -> str:
        """Send one call and judge its answer."""
        received = await client.send(call)
        try:
            verdict = judge(call, received, self.seeds.get(call.id), closing=self.closing)
        except Violation as violation:
            self.violate(f"{call.id} {'stream' if call.streams else 'whole'}: {violation}")
            verdict = "violation"
        self.run.verdicts[verdict] += 1
        self.journal.note(call.id, f"{verdict} after {received.seconds:.3f} s")
        return verdict

    # One run.

    async def live(self) -> None:
        sock = self.network.create_server(("127.0.0.1", 0))
        self.port = sock.port
        if self.plan.attached:
            for place in range(MAX_REPLICAS + self.plan.prefills):
                self.attach(f"at {place}", FIRST_ATTACHED_PORT + place)
        config = fleet_config(self.plan, replicas=self.plan.replicas, policy=self.plan.policy)
        self.service = FleetService(
            config, cores=1, equip=self._equip, read_config=self._reread, clock=self.loop.time
        )
        ready = asyncio.Event()

        async def on_ready(service: FleetService) -> None:
            ready.set()

        running = asyncio.ensure_future(self.service.run(sock, on_ready))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(60):
                await ready.wait()
            if self.plan.stops:
                await self._stop_under_load(running)
            else:
                await self._load()
            check_books(self)
            if not self.ended:
                await check_no_orphans(self)
        except Violation as violation:
            self.violate(str(violation))
        finally:
            self.closing = True
            self.service.stop()
            await self._ended(running)
        self.over = True
        self.run.restarts = (
            self.processes.started - self.plan.replicas - self.plan.prefills if not self.plan.attached else 0
        )
        for task in self._load_tasks:
            task.cancel()
        await asyncio.gather(*self._load_tasks, return_exceptions=True)
        for program in self.programs:
            program.end()
        await asyncio.sleep(1.0)
        check_nothing_left(self)

    async def _ended(self, running: "asyncio.Future[None]") -> None:
        try:
            async with asyncio.timeout(60):
                await running
        except TimeoutError:
            self.violate("the fleet didn't end within 60 s")
        self.ended = True

    def _begin_load(self) -> list[asyncio.Task[None]]:
        self._load_tasks = [asyncio.ensure_future(self._client(number)) for number in range(self.plan.clients)]
        return self._load_tasks

    async def _stop_under_load(self, running: "asyncio.Future[None]") -> None:
        load = self._load_tasks = [
            asyncio.ensure_future(self._client(number)) for number in range(self.plan.clients)
        ]
        troubles = asyncio.ensure_future(self.troubles.run())
        await asyncio.sleep(self.plan.seconds * self.draws.random())
        self.journal.note("world", "the fleet is stopped")
        self.closing = True
        self.service.stop()
        if self.draws.random() < 0.3:
            await asyncio.sleep(self.draws.uniform(0.0, 4.0))
            self.service.stop()
        await self._ended(running)
        self._calm.set()
        await asyncio.gather(*load, troubles)

    async def _load(self) -> None:
        load = self._load_tasks = [
            asyncio.ensure_future(self._client(number)) for number in range(self.plan.clients)
        ]
        await self.troubles.run()
        self.journal.note("world", "no more faults")
        calm_at = self.loop.time()
        await self._until_whole(calm_at)
        self.run.recovery_seconds = self.loop.time() - calm_at
        self._calm.set()
        await asyncio.gather(*load)
        await self._prove_recovery()

    async def _prove_recovery(self) -> None:
        """Ask more at a time than all replicas but one take, until all breakers have closed."""
        draws = random.Random(f"{self.run.seed}/probe")
        started = self.loop.time()
        while True:
            count = MAX_INFLIGHT * self.service.config.pools[0].count
            calls = [draw_call(draws, self._number(), faulty=0.0) for _ in range(count)]
            clients = [Client(self.network, self.port, draws) for _ in calls]
            pairs = zip(clients, calls, strict=True)
            verdicts = await asyncio.gather(*(self.call(client, call) for client, call in pairs))
            for client in clients:
                client.close()
            # A burst may be too much for a target that requests have to meet, or gauges may not be read anew yet.
            fine = {"ok", "typed error 429"} if self.plan.ttft_target else {"ok"}
            if set(verdicts) - fine:
                raise Violation(f"after recovery the fleet answered {', '.join(sorted(set(verdicts)))}")
            opened = open_breakers(self)
            if "ok" in verdicts and not opened:
                return
            if self.loop.time() - started > RECOVERY_SECONDS:
                raise Violation(f"after {RECOVERY_SECONDS:.0f} s of {set(verdicts)} breakers are open: {opened}")
            await asyncio.sleep(1.0)

    async def _until_whole(self, calm_at: float) -> None:
        while (missing := is_whole(self)) is not None:
            if self.loop.time() - calm_at > RECOVERY_SECONDS:
                raise Violation(f"not whole {RECOVERY_SECONDS:.0f} s after the last fault: {missing}")
            await asyncio.sleep(0.2)
