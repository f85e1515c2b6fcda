"""What the real fleet's health monitor and supervisor do by timers: checks, gauges, hangs, stragglers, restarts."""

from shoal.policy.health import HealthJudge
from shoal.policy.outcomes import Outcome
from shoal.policy.restarts import RestartPolicy
from shoal.policy.routing.draws import Draws
from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.gateway import SimulatedGateway
from shoal.sim.legs import Leg, SimulatedAccount

_NEVER = 1 << 62


class HealthSweeps:
    """Looks once per `check_seconds` at every replica where looking may change anything.

    That is where legs are, or were since the last look; where steps are, or were when gauges were last read; where
    a fault struck; and where a check is due. Elsewhere the real monitor finds what it found before.
    """

    def __init__(self, gateway: SimulatedGateway, events: Events, seed: int) -> None:
        self._gateway = gateway
        self._events = events
        self._judge = HealthJudge(gateway.fleet.health)
        self._config = gateway.fleet.health
        self._period = nanoseconds(self._config.check_seconds)
        self._draws = Draws(seed)
        self._restarts: dict[str, RestartPolicy] = {}
        self._ready_since: dict[str, int] = {}
        self._next_check: dict[str, int] = {}
        """Of replicas that are not well: a check that gets no answer takes its time."""
        self._asked: dict[str, bool] = {}
        """Whether the last gauges showed work: then they are read once more."""
        self._watched: dict[str, SimulatedAccount] = {}
        self._places: dict[str, int] = {}
        self._sleeps = True
        """No sweep is to come."""
        self._released = 0
        """Legs that had ended when stragglers were judged last."""
        self.ejections = self.hangs = self.given_up = 0

    def start(self) -> None:
        """Begin to look, as soon as there is anything to look at."""
        self._places = {account.name: i for i, account in enumerate(self._gateway.accounts.replicas)}
        self._gateway.watch = self.watch

    def watch(self, account: SimulatedAccount) -> None:
        """Something has changed, or is about to: look at this replica from the next sweep on."""
        self._watched[account.name] = account
        if self._sleeps:
            self._sleeps = False
            self._events.at((self._events.now // self._period + 1) * self._period, self._sweep)

    def _is_quiet(self, account: SimulatedAccount) -> bool:
        """Whether nothing can be found until somebody calls `watch`."""
        replica = account.replica
        if account.state.inflight or account.state.ejected:
            return False
        if not replica.up:
            return True
        return (
            replica.idle
            and not replica.hangs
            and not account.cut_off
            and account.state.healthy
            and not self._asked.get(account.name)
            and account.name not in self._next_check
        )

    def _sweep(self, time: int) -> None:
        now = time / NANOSECONDS
        places = self._places
        watched = sorted(self._watched.values(), key=lambda account: places[account.name])
        for account in watched:
            self._check(account, time)
            replica = account.replica
            if not replica.up or account.cut_off or replica.hangs:
                self._look_for_hang(account, time)
                continue
            if account.state.decoding:
                account.last_progress = max(account.last_progress, replica.progressed_at(time) / NANOSECONDS)
            self._look_for_hang(account, time)
            busy = not replica.idle
            if busy or self._asked.get(account.name):
                self._asked[account.name] = busy
                if account.on_stats(replica.gauges(time), now, account.state.inflight):
                    self._gateway.router.forget(account.name)
        self._judge_stragglers(watched, time)
        for account in watched:
            if self._is_quiet(account):
                del self._watched[account.name]
        if self._watched:
            self._events.at(time + self._period, self._sweep)
        else:
            self._sleeps = True

    def _judge_stragglers(self, watched: list[SimulatedAccount], time: int) -> None:
        """Judge them again, unless no leg has ended since and nobody is set aside."""
        accounts = self._gateway.accounts
        released = sum(accounts.ledger.released.values())
        if released == self._released and not any(account.state.ejected for account in watched):
            return
        self._released = released
        changed = self._judge.judge_stragglers(accounts.replicas, time / NANOSECONDS)
        self.ejections += len(changed.ejected)
        for name, _ in changed.ejected:
            self.watch(accounts.get(name))
        if changed.returned:
            self._gateway.pump(time)

    def _check(self, account: SimulatedAccount, time: int) -> None:
        """The readiness check. Those of a replica that is well and counts as healthy change nothing."""
        well = account.replica.up and not account.replica.hangs and not account.cut_off
        due = self._next_check.get(account.name)
        if well and account.state.healthy and due is None:
            return
        if due is not None and time < due:
            return
        if not well and account.replica.up:
            # It gets no answer, which takes until its timeout.
            self._next_check[account.name] = time + nanoseconds(self._config.check_timeout) + self._period
        else:
            self._next_check[account.name] = time + self._period
        verdict = self._judge.on_check(account, well)
        if verdict is False:
            self._set_health(account, False, time)
            self._end_legs(account, "it is unhealthy", time)
        elif verdict:
            self._set_health(account, True, time)
        if well and account.state.healthy:
            self._next_check.pop(account.name, None)

    def _set_health(self, account: SimulatedAccount, healthy: bool, time: int) -> None:
        account.state.healthy = healthy
        if healthy:
            self._gateway.pump(time)

    def _end_legs(self, account: SimulatedAccount, why: str, time: int) -> None:
        for leg in self._gateway.legs_on(account):
            self._gateway.end_leg(leg, Outcome.REPLICA_FAULT, why, time)

    def _look_for_hang(self, account: SimulatedAccount, time: int) -> None:
        now = time / NANOSECONDS
        if now - account.last_progress <= self._config.hang_seconds:
            return  # nothing can be found: no sorting of leases for it
        leases = self._gateway.accounts.ledger.leases(account.name)
        if self._judge.hangs(account, leases, now):
            self.hangs += 1
            self._judge.on_hang(account, now)
            self._end_legs(account, f"it produced nothing for {self._config.hang_seconds:g} s", time)
        for leg in self._gateway.legs_on(account):
            self._time_out(leg, time)

    def _time_out(self, leg: Leg, time: int) -> None:
        lease, fleet = leg.placed.lease, self._gateway.fleet
        if leg.of is not None:
            return  # prefill legs have a limit of their own
        limit = fleet.first_byte if lease.first_at is None else fleet.stall
        since = lease.taken_at if lease.first_at is None else max(lease.last_at, leg.account.last_progress)
        if time / NANOSECONDS - since > limit:
            self._gateway.end_leg(leg, Outcome.DEADLINE, f"no output for {limit:g} s", time)

    # Processes

    def crash(self, account: SimulatedAccount, time: int, *, starts: bool = True) -> None:
        """A replica's process ends; `starts` False: it can't be started again."""
        gateway, replica = self._gateway, account.replica
        self.watch(account)
        gateway.note_sent(account, time)
        replica.crash(time)
        gateway.splitter.crashed(account, time)
        for leg in gateway.legs_on(account):
            gateway.end_leg(leg, Outcome.TRANSPORT_FAULT, "the connection broke", time)
        # Its supervisor sees that it is gone: nothing is sent there until it is ready again.
        self._set_health(account, False, time)
        gateway.router.forget(account.name)
        served = (time - self._ready_since.get(account.name, 0)) / NANOSECONDS
        self._restart(account, served, time, final=not starts)

    def _restart(self, account: SimulatedAccount, served: float, time: int, *, final: bool = False) -> None:
        policy = self._restarts.get(account.name)
        if policy is None:
            policy = self._restarts[account.name] = RestartPolicy(self._gateway.fleet.restart, attached=False)
        delay = policy.on_crash(served, self._draws.uniform(), final=final)
        if delay is None:
            self.given_up += 1
            self._next_check[account.name] = _NEVER
            return
        wait = nanoseconds(delay + account.spec.start)
        self._next_check[account.name] = time + wait
        self._events.at(time + wait, lambda t: self._started(account, t))

    def _started(self, account: SimulatedAccount, time: int) -> None:
        if account.fails_to_load:
            account.fails_to_load -= 1
            self._restart(account, 0.0, time)
            return
        account.replica.start()
        self.watch(account)
        self._ready_since[account.name] = time
        self._next_check.pop(account.name, None)
        self._set_health(account, True, time)
