"""What a fleet shows of itself, added to its gateway: metrics, dashboard, traces."""

from collections import OrderedDict

import msgspec
from starlette.types import ASGIApp, Scope

from shoal import __version__
from shoal.fleet.gateway import Gateway, RequestRecord
from shoal.fleet.gateway.pages import Page
from shoal.fleet.gateway.record import Observer
from shoal.fleet.managed import ManagedReplica, ReplicaPhase
from shoal.fleet.registry import Replica
from shoal.fleet.service import FleetService
from shoal.observe.dashboard import HTML, page
from shoal.observe.fleet_metrics import FleetMetrics, tpot_of
from shoal.observe.traces import set_up, traced
from shoal.observe.view import DecisionView, FleetView, ReplicaView
from shoal.observe.window import Ended, Window, hit_ratios, latency, totals
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision

_DECISIONS = 50
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class FleetObserver(Observer):
    """Keeps what the dashboard shows: recent requests and decisions. Lives as long as the fleet."""

    def __init__(self, service: FleetService) -> None:
        self._service = service
        self._clock = service.registry.clock
        self._started = self._clock()
        self._window = Window()
        self._outcomes: dict[str, int] = {}
        self._decisions: OrderedDict[int, tuple[RequestRecord, float]] = OrderedDict()
        """The last ones, by the identity of the record that they belong to."""

    # What the gateway tells.

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        self._decisions.pop(id(record), None)
        self._decisions[id(record)] = (record, self._clock())
        while len(self._decisions) > _DECISIONS:
            self._decisions.popitem(last=False)

    def on_finished(self, record: RequestRecord) -> None:
        if record.method != "POST":
            return
        outcome = str(record.outcome) if record.outcome is not None else "refused"
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        if not record.replica:
            return
        good = record.outcome is Outcome.OK
        self._window.add(
            Ended(
                at=record.ended,
                replica=record.replica,
                ttft=record.first_token - record.arrived if good and record.first_token is not None else None,
                tpot=tpot_of(record) if good else None,
                e2e=record.ended - record.arrived if good else None,
                queue=record.leased - record.arrived if record.leased is not None else None,
                prompt_tokens=record.prompt_tokens,
                output_tokens=record.completion_tokens,
                predicted_hit=record.predicted_hit,
                actual_hit=record.actual_hit,
            )
        )

    # What the dashboard asks.

    def view(self) -> FleetView:
        service, now = self._service, self._clock()
        service.registry.states(now)
        recent = self._window.recent(now)
        span = self._window.span(now, self._started)
        replicas = tuple(self._replica(managed, recent, span, now) for managed in service.supervisor.replicas)
        gateway = service.gateway
        assert gateway is not None
        ready = sum(replica.state == "ready" for replica in replicas)
        status = "ready" if ready == len(replicas) else "degraded" if ready else "down"
        models = sorted({model for pool in service.config.pools for model in pool.models})
        return FleetView(
            title=", ".join(models),
            version=__version__,
            uptime_seconds=now - self._started,
            status="draining" if gateway.draining else status,
            policy=service.config.router.policy,
            totals=totals(
                recent,
                span,
                sum(replica.devices for replica in replicas),
                running=sum(r.state.inflight + r.state.foreign for r in service.registry.replicas),
                waiting=gateway.admission.queued + sum(replica.waiting for replica in replicas),
                predicted_hit_ratio=hit_ratios(recent)[0],
                outcomes=dict(self._outcomes),
            ),
            latency=latency(recent),
            replicas=replicas,
            decisions=self._shown(now),
        )

    def _replica(self, managed: ManagedReplica, recent: list[Ended], span: float, now: float) -> ReplicaView:
        registry = self._service.registry
        replica = registry.get(managed.name) if managed.name in registry else None
        state, why = _state(managed, replica, now)
        mine = [e for e in recent if e.replica == managed.name]
        base = ReplicaView(
            name=managed.name,
            pool=managed.pool.name,
            state=state,
            why=why,
            models=managed.pool.models,
            engine=managed.pool.engine,
            restarts=managed.restarts,
            pid=managed.pid,
            age_seconds=managed.age,
            devices=managed.pool.ranks,
            hit_ratio=hit_ratios(mine)[1],
            tokens_per_second=sum(e.output_tokens for e in mine) / span,
        )
        if replica is None:
            return base
        stats = replica.stats
        return msgspec.structs.replace(
            base,
            running=stats.running if stats.running is not None else replica.state.inflight,
            waiting=stats.waiting or 0,
            batch_sequences=replica.batch_sequences,
            rank_waiting=replica.rank_waiting,
            pending_tokens=replica.state.pending_tokens,
            role=replica.state.role,
            inflight=replica.state.inflight,
            kv_usage=stats.kv_usage,
            kv_capacity_tokens=stats.kv_capacity_tokens,
            trust=replica.trust.value,
            ttft=replica.rates.ttft or None,
            tpot=replica.rates.tpot or None,
        )

    def _shown(self, now: float) -> tuple[DecisionView, ...]:
        return tuple(
            DecisionView(
                age_seconds=now - at,
                request_id=record.request_id,
                model=record.model,
                replica=record.replica,
                reason=record.reason,
                predicted_hit=record.predicted_hit,
                actual_hit=record.actual_hit,
                prompt_tokens=record.prompt_tokens,
                predicted_ttft=record.predicted_ttft,
                ttft=record.first_token - record.arrived if record.first_token is not None else None,
                outcome=str(record.outcome) if record.ended and record.outcome is not None else None,
            )
            for record, at in reversed(self._decisions.values())
        )


def _state(managed: ManagedReplica, replica: Replica | None, now: float) -> tuple[str, str]:
    """One word for a replica, and why it isn't `ready`."""
    if managed.state is not ReplicaPhase.READY or replica is None:
        return str(managed.state), managed.problem
    if not replica.state.healthy:
        return "unhealthy", replica.unhealthy_because
    if replica.state.ejected:
        return "set aside", "far slower than its peers"
    if not replica.breaker.allows(now):
        return "breaker open", "too many faults"
    return "ready", ""


class FleetEquipment:
    """What outlives a gateway: made once for a fleet, it equips each of its gateways."""

    def __init__(self) -> None:
        self.traces = False
        """Spans are exported, now or since before a reload: `shut_down` at the end."""
        self._observer: FleetObserver | None = None
        self._metrics: FleetMetrics | None = None

    def __call__(self, service: FleetService, gateway: Gateway) -> ASGIApp:
        """Pages and observers for a new gateway; what is to be served in its place."""
        if self._observer is None or self._metrics is None:
            self._observer, self._metrics = FleetObserver(service), FleetMetrics(service)
        observer, metrics = self._observer, self._metrics
        gateway.observers.all += [observer, metrics]

        async def dashboard(scope: Scope) -> Page:
            return Page(page(), HTML)

        async def numbers(scope: Scope) -> Page:
            return Page(msgspec.json.encode(observer.view()))

        async def prometheus(scope: Scope) -> Page:
            return Page(metrics.text(), PROMETHEUS)

        gateway.pages.add("/", dashboard)
        gateway.pages.add("/api/fleet", numbers, scope="observe")
        gateway.pages.add("/metrics", prometheus, scope="observe")
        if not service.config.tracing:
            return gateway
        if not self.traces:
            set_up("shoal-gateway")
            self.traces = True
        return traced(gateway, gateway.observers)
