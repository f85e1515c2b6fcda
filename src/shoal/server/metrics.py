"""Prometheus metrics of one replica: a registry an app, no globals.

The engine's own counters are read when scraped; histograms are fed by the engine's observer calls, which come
from its thread (prometheus_client's metrics are thread-safe).
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.engine.outputs import EngineStats, RequestTimings, StepStats

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_GAP = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_SIZES = tuple(float(2**i) for i in range(14))
_SEQUENCES = tuple(float(2**i) for i in range(10))


class EngineCollector(Collector):
    """Gauges and counters that the engine already keeps; read at scrape time, nothing is counted twice."""

    def __init__(self, stats: Callable[[], EngineStats | None], label: Callable[[], str]) -> None:
        self._stats = stats
        self._label = label

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        if stats is None:
            return
        usage = stats.kv_used_blocks / stats.kv_total_blocks if stats.kv_total_blocks else 0.0
        gauges: list[tuple[str, str, float]] = [
            ("shoal_requests_running", "Sequences being computed.", stats.running),
            ("shoal_requests_waiting", "Sequences that wait for memory or a slot.", stats.waiting),
            ("shoal_kv_blocks", "Blocks of KV memory.", stats.kv_total_blocks),
            ("shoal_kv_block_tokens", "Tokens a block.", stats.kv_block_tokens),
            ("shoal_kv_blocks_used", "Blocks owned by live sequences.", stats.kv_used_blocks),
            ("shoal_kv_blocks_cached", "Free blocks that still hold a reusable prefix.", stats.kv_cached_blocks),
            ("shoal_kv_usage_ratio", "Share of the KV blocks owned by live sequences, 0 to 1.", usage),
        ]
        counters: list[tuple[str, str, float]] = [
            ("shoal_preemptions", "Sequences put back to be recomputed.", stats.preemptions),
            (
                "shoal_prefix_queried_tokens",
                "Prompt tokens looked up in the prefix cache.",
                stats.prefix_queried_tokens,
            ),
            ("shoal_prefix_hit_tokens", "Prompt tokens whose KV was reused.", stats.prefix_hit_tokens),
            ("shoal_prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens),
            ("shoal_generated_tokens", "Tokens generated.", stats.generated_tokens),
            ("shoal_engine_steps", "Forward passes.", stats.steps),
            ("shoal_kv_offers", "Prompts whose KV was held for another replica.", stats.kv_offers),
            ("shoal_kv_offers_taken", "Of these, fetched.", stats.kv_offers_taken),
            ("shoal_kv_offers_expired", "Of these, released because nobody came.", stats.kv_offers_expired),
            ("shoal_kv_imported_blocks", "Blocks taken over from other replicas.", stats.kv_imported_blocks),
            ("shoal_kv_imports_failed", "Prompts computed here as a transfer failed.", stats.kv_imports_failed),
        ]
        model = [self._label()]
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric(model, value)
            yield gauge
        for name, text, value in counters:
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric(model, value)
            yield counter
        yield from _rank_times(stats, model[0])


def _rank_times(stats: EngineStats, model: str) -> Iterable[Metric]:
    """Counters by rank; none for a replica of one rank."""
    if len(stats.ranks) < 2:
        return
    labels = ["model_name", "rank"]
    seconds = CounterMetricFamily("shoal_rank_step_seconds", "Time in forward passes, per rank.", labels=labels)
    waiting = CounterMetricFamily(
        "shoal_rank_waiting_seconds",
        "Of shoal_rank_step_seconds, time spent waiting for other ranks.",
        labels=labels,
    )
    for rank in stats.ranks:
        seconds.add_metric([model, str(rank.rank)], rank.seconds)
        waiting.add_metric([model, str(rank.rank)], rank.waited)
    yield from (seconds, waiting)


class ServerMetrics:
    """All metrics of one server; also the engine's observer (`on_step`, `on_finished`)."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._source: Callable[[], EngineStats] | None = None
        registry = CollectorRegistry(auto_describe=False)
        self.registry = registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(EngineCollector(self._stats, lambda: self._model_name))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(name, text, ["model_name"], buckets=buckets, registry=registry)
            return family.labels(model_name)

        self._ttft = histogram("shoal_time_to_first_token_seconds", "Arrival to first token.", _LATENCY)
        self._gap = histogram("shoal_inter_token_latency_seconds", "Gap between a sequence's tokens.", _GAP)
        self._e2e = histogram("shoal_e2e_request_latency_seconds", "Arrival to last token.", _LATENCY)
        self._queue = histogram("shoal_request_queue_time_seconds", "Arrival to first scheduled.", _LATENCY)
        self._step = histogram("shoal_step_seconds", "Duration of a forward pass, scheduling included.", _GAP)
        self._batch_tokens = histogram("shoal_batch_tokens", "Tokens (rows) of a step.", _SIZES)
        self._batch_sequences = histogram("shoal_batch_sequences", "Sequences of a step.", _SEQUENCES)
        self._prompt = histogram("shoal_request_prompt_tokens", "Prompt tokens of a finished sequence.", _SIZES)
        self._generated = histogram(
            "shoal_request_generated_tokens", "Tokens generated by a finished sequence.", _SIZES
        )
        self._finished = Counter(
            "shoal_requests_finished", "Finished sequences.", ["model_name", "finish_reason"], registry=registry
        )
        self._http = Counter(
            "shoal_http_requests", "HTTP requests answered.", ["path", "method", "status"], registry=registry
        )
        self.http_in_flight = Gauge(
            "shoal_http_requests_in_flight", "HTTP requests being answered.", registry=registry
        )

    def watch(self, stats: Callable[[], EngineStats]) -> None:
        """From now on the engine's gauges and counters are read from `stats` at every scrape."""
        self._source = stats

    def on_step(self, stats: StepStats) -> None:
        self._step.observe(stats.seconds)
        self._batch_tokens.observe(stats.tokens)
        self._batch_sequences.observe(stats.sequences)
        for gap in stats.inter_token:
            self._gap.observe(gap)

    def on_finished(self, timings: RequestTimings) -> None:
        self._finished.labels(self._model_name, timings.finish_reason).inc()
        self._prompt.observe(timings.prompt_tokens)
        if timings.finish_reason not in ("abort", "error"):
            # One that was ended before its time would be a fast and short answer.
            self._generated.observe(timings.generated_tokens)
            self._e2e.observe(timings.finish - timings.arrival)
        if timings.first_scheduled is not None:
            self._queue.observe(timings.first_scheduled - timings.arrival)
        if timings.first_token is not None:
            self._ttft.observe(timings.first_token - timings.arrival)

    def on_http(self, path: str, method: str, status: int) -> None:
        """`path` must be a known route (or `other`): a label that clients choose would grow without bound."""
        self._http.labels(path, method, str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _stats(self) -> EngineStats | None:
        return self._source() if self._source is not None else None
