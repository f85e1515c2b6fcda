"""Prometheus metrics of a fleet: what clients see, what every replica does, and whether predictions come true.

Histograms and counters are fed by the gateway's records; gauges are read from the registry when scraped.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.fleet.gateway import RequestRecord
from shoal.fleet.gateway.split import Splitter
from shoal.fleet.registry import Replica
from shoal.fleet.service import FleetService
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_WAIT = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WHERE = ["model_name", "pool", "replica"]
_STATES = ("closed", "open", "half_open")


class FleetMetrics:
    """An observer of gateways; lives as long as the fleet, whatever gateways come and go."""

    def __init__(self, service: FleetService) -> None:
        registry = CollectorRegistry(auto_describe=False)
        self._registry = registry
        ProcessCollector(registry=registry)
        registry.register(_Gauges(service))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _WHERE, buckets=buckets, registry=registry)

        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._ttft = histogram("shoal_fleet_time_to_first_token_seconds", "Arrival to first token.", _LATENCY)
        self._gap = histogram(
            "shoal_fleet_inter_token_latency_seconds", "Mean time between tokens, per request.", _GAP
        )
        self._e2e = histogram("shoal_fleet_e2e_request_latency_seconds", "Arrival to the last byte.", _LATENCY)
        self._queue = histogram("shoal_fleet_queue_seconds", "Time in the admission queue.", _WAIT)
        self._prefill = Histogram(
            "shoal_fleet_prefill_seconds",
            "Prefill on another replica, from its selection to its hand-off, waiting included.",
            ["model_name", "replica"],
            buckets=_LATENCY,
            registry=registry,
        )
        self._requests = counter(
            "shoal_fleet_requests",
            "Requests by how they ended for the client.",
            ["model_name", "outcome", "status"],
        )
        self._legs = counter(
            "shoal_fleet_legs",
            "Requests to replicas; retries count each.",
            ["pool", "replica", "outcome"],
        )
        self._prompt = counter("shoal_fleet_prompt_tokens", "Prompt tokens, as engines count them.", _WHERE)
        self._output = counter("shoal_fleet_generated_tokens", "Tokens generated.", _WHERE)
        self._predicted = counter("shoal_fleet_predicted_hit_tokens", "Prompt tokens expected in a cache.", _WHERE)
        self._actual = counter("shoal_fleet_hit_tokens", "Prompt tokens that engines say they reused.", _WHERE)
        self._retries = counter("shoal_fleet_retries", "Further attempts before a first byte.", ["model_name"])
        self._continued = counter("shoal_fleet_continuations", "Streams carried on elsewhere.", ["model_name"])
        self._distrust = counter("shoal_fleet_distrust", "Predicted hits stopped coming true.", ["replica"])

    def on_decision(self, record: RequestRecord, decision: Decision) -> None:
        if record.attempts > 1 and not record.continued:
            self._retries.labels(record.model).inc()

    def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None:
        self._legs.labels(pool, replica, outcome).inc()

    def on_distrust(self, replica: str, trust: float) -> None:
        self._distrust.labels(replica).inc()

    def on_finished(self, record: RequestRecord) -> None:
        if not record.path.startswith("/v1/") or record.method != "POST":
            return
        outcome = str(record.outcome) if record.outcome is not None else "refused"
        self._requests.labels(record.model, outcome, str(record.status)).inc()
        if not record.replica:
            return
        where = (record.model, record.pool, record.replica)
        if record.leased is not None:
            self._queue.labels(*where).observe(record.leased - record.arrived)
        if record.prefill_seconds is not None:
            self._prefill.labels(record.model, record.prefill).observe(record.prefill_seconds)
        if record.continued:
            self._continued.labels(record.model).inc(record.continued)
        self._prompt.labels(*where).inc(record.prompt_tokens)
        self._output.labels(*where).inc(record.completion_tokens)
        if record.actual_hit is not None:
            self._predicted.labels(*where).inc(min(record.predicted_hit, record.prompt_tokens))
            self._actual.labels(*where).inc(record.actual_hit)
        if record.outcome is not Outcome.OK:
            return
        self._e2e.labels(*where).observe(record.ended - record.arrived)
        if record.first_token is not None:
            self._ttft.labels(*where).observe(record.first_token - record.arrived)
        if (gap := tpot_of(record)) is not None:
            self._gap.labels(*where).observe(gap)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def tpot_of(record: RequestRecord) -> float | None:
    """Mean gap between the tokens of a stream; None for one token, or an answer in one piece."""
    pieces = record.completion_tokens or record.chunks
    if record.first_token is None or record.last_token is None or pieces < 2:
        return None
    return (record.last_token - record.first_token) / (pieces - 1)


_Row = tuple[str, str, list[tuple[Replica, float | None]]]
"""A metric's name, its help, and its value for each replica; None: not known."""


def _families(kind: type[GaugeMetricFamily | CounterMetricFamily], rows: list[_Row]) -> Iterable[Metric]:
    for name, text, values in rows:
        family = kind(f"shoal_fleet_replica_{name}", text, labels=["pool", "replica"])
        for replica, value in values:
            if value is not None:
                family.add_metric([replica.handle.pool, replica.name], value)
        yield family


class _Gauges(Collector):
    """Read at scrape time: nothing is counted twice."""

    def __init__(self, service: FleetService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        service = self._service
        registry = service.registry
        registry.states(registry.clock())
        yield from self._replicas(registry.replicas, registry.clock())
        yield from self._units()
        gateway = service.gateway
        if gateway is not None:
            yield _single("shoal_fleet_requests_in_flight", "Requests being answered.", gateway.live)
            yield _single("shoal_fleet_queue_length", "Requests in the admission queue.", gateway.admission.queued)
            yield from _handoffs(gateway.splitter)
        yield _single("shoal_fleet_leases", "Leases held.", registry.ledger.live())
        taken = CounterMetricFamily("shoal_fleet_leases_taken", "Leases ever taken.")
        taken.add_metric([], registry.ledger.taken)
        yield taken

    def _replicas(self, replicas: list[Replica], now: float) -> Iterable[Metric]:
        rows: list[_Row] = [
            ("healthy", "1: its checks are good.", [(r, float(r.state.healthy)) for r in replicas]),
            ("ejected", "1: set aside as a straggler.", [(r, float(r.state.ejected)) for r in replicas]),
            ("draining", "1: it gets nothing new.", [(r, float(r.state.draining)) for r in replicas]),
            ("breaker", "0 closed, 1 open, 2 half-open.", [(r, _breaker(r, now)) for r in replicas]),
            ("inflight", "Leases held there.", [(r, r.state.inflight) for r in replicas]),
            ("decoding", "Of them, those past their first token.", [(r, r.state.decoding) for r in replicas]),
            ("pending_tokens", "Prompt tokens to be computed.", [(r, r.state.pending_tokens) for r in replicas]),
            ("running", "Requests it says it computes.", [(r, r.stats.running) for r in replicas]),
            ("waiting", "Requests it says wait in it.", [(r, r.stats.waiting) for r in replicas]),
            ("kv_usage_ratio", "Share of its KV memory in use.", [(r, r.stats.kv_usage) for r in replicas]),
            ("drift", "Requests it counts beyond our leases.", [(r, r.drift) for r in replicas]),
            ("trust", "How far predicted hits came true.", [(r, r.trust.value) for r in replicas]),
            ("prefill_rate", "Prompt tokens per second, learned.", [(r, r.rates.prefill_rate) for r in replicas]),
        ]
        yield from _families(GaugeMetricFamily, rows)
        counted: list[_Row] = [
            ("steps", "Forward passes it made.", [(r, r.stats.steps) for r in replicas]),
            ("step_sequences", "Sequences in all its steps.", [(r, r.stats.step_sequences) for r in replicas]),
            ("step_tokens", "Tokens (rows) in all its steps.", [(r, r.stats.step_tokens) for r in replicas]),
            ("rank_seconds", "Step time, summed over its ranks.", [(r, r.stats.rank_seconds) for r in replicas]),
            (
                "rank_waiting_seconds",
                "Of it, time that ranks waited for each other.",
                [(r, r.stats.rank_waiting_seconds) for r in replicas],
            ),
        ]
        yield from _families(CounterMetricFamily, counted)

    def _units(self) -> Iterable[Metric]:
        restarts = CounterMetricFamily("shoal_fleet_restarts", "Times started again.", labels=["pool", "replica"])
        devices = GaugeMetricFamily(
            "shoal_fleet_replica_devices",
            "Its ranks; divides tokens/s.",
            labels=["pool", "replica"],
        )
        states = GaugeMetricFamily(
            "shoal_fleet_replica_state", "1 for the state it is in.", labels=["pool", "replica", "state"]
        )
        for managed in self._service.supervisor.replicas:
            where = [managed.pool.name, managed.name]
            restarts.add_metric(where, managed.restarts)
            devices.add_metric(where, managed.pool.ranks)
            states.add_metric([*where, managed.state], 1)
        yield from (restarts, devices, states)


def _handoffs(splitter: Splitter) -> Iterable[Metric]:
    """KV handed from prefill to decode replicas: handed = taken + released + lost + live."""
    counted = CounterMetricFamily(
        "shoal_fleet_handoffs", "KV hand-offs of prefill replicas, by what became of them.", labels=["event"]
    )
    for event in ("handed", "taken", "released", "lost"):
        counted.add_metric([event], getattr(splitter.counts, event))
    yield counted
    yield _single(
        "shoal_fleet_handoffs_live", "KV handed over that nobody took or released yet.", splitter.counts.live
    )
    yield _single("shoal_fleet_prefill_queue_length", "Prompts queued at prefill replicas.", splitter.queued)


def _breaker(replica: Replica, now: float) -> float:
    return float(_STATES.index(replica.breaker.state(now)))


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric([], value)
    return gauge
