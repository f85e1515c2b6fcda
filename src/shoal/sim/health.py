"""What the real fleet's health monitor and supervisor do by timers: checks, gauges, hangs, stragglers, restarts."""

from shoal.policy.health import HealthJudge
from shoal.policy.outcomes import Outcome
from shoal.policy.restarts import RestartPolicy
from shoal.policy.routing.draws import Draws
from shoal.sim.events import NANOSECONDS, Events, nanoseconds
from shoal.sim.gateway import SimulatedGateway
from shoal.sim.legs import Leg, SimulatedAccount


class HealthSweeps:
    """Looks at every replica once per `check_seconds`, as long as there is anything to look at."""

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
        self.ejections = self.hangs = self.given_up = 0

    def start(self) -> None:
        """Begin to look."""
        self._events.at(self._period, self._sweep)

    def _sweep(self, time: int) -> None:
        now = time / NANOSECONDS
        accounts = self._gateway.accounts.replicas
        for account in accounts:
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
        changed = self._judge.judge_stragglers(accounts, now)
        self.ejections += len(changed.ejected)
        if changed.returned:
            self._gateway.pump(time)
        self._events.at(time + self._period, self._sweep)

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
        limit = fleet.first_byte if lease.first_at is None else fleet.stall
        since = lease.taken_at if lease.first_at is None else max(lease.last_at, leg.account.last_progress)
        if time / NANOSECONDS - since > limit:
            self._gateway.end_leg(leg, Outcome.DEADLINE, f"no output for {limit:g} s", time)

    # Processes

    def crash(self, account: SimulatedAccount, time: int, *, starts: bool = True) -> None:
        """A replica's process ends; `starts` False: it can't be started again."""
        gateway, replica = self._gateway, account.replica
        gateway.note_sent(account, time)
        replica.crash(time)
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
            self._next_check[account.name] = 1 << 62
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
        self._ready_since[account.name] = time
        self._next_check.pop(account.name, None)
        self._set_health(account, True, time)
