"""The dashboard of a single replica: the fleet's page, with one replica on it and no router."""

import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from shoal import __version__
from shoal.engine.outputs import EngineStats, Observer, RequestTimings
from shoal.engine.ranks.stats import waiting_share
from shoal.observe.dashboard import HTML, page
from shoal.observe.view import FleetView, ReplicaView
from shoal.observe.window import Ended, Window, latency, totals

if TYPE_CHECKING:
    from shoal.server.lifecycle import ReplicaServer

_GOOD = ("stop", "length")


class ReplicaDashboard(Observer):
    """An observer of one engine, called from its thread; its routes are called from the event loop."""

    def __init__(self) -> None:
        self._window = Window()
        self._outcomes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._started = time.monotonic()

    def on_finished(self, timings: RequestTimings) -> None:
        good = timings.finish_reason in _GOOD
        first, tokens = timings.first_token, timings.generated_tokens
        gap = (timings.finish - first) / (tokens - 1) if good and first is not None and tokens > 1 else None
        ended = Ended(
            at=time.monotonic(),
            replica="",
            ttft=first - timings.arrival if good and first is not None else None,
            tpot=gap,
            e2e=timings.finish - timings.arrival if good else None,
            queue=timings.first_scheduled - timings.arrival if timings.first_scheduled is not None else None,
            prompt_tokens=timings.prompt_tokens,
            output_tokens=tokens,
            predicted_hit=timings.cached_tokens,
            actual_hit=timings.cached_tokens,
        )
        outcome = "ok" if good else "cancelled" if timings.finish_reason == "abort" else "error"
        with self._lock:
            self._window.add(ended)
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1

    def routes(self, replica: "ReplicaServer") -> Sequence[BaseRoute]:
        """For `Replica(pages=…)`."""

        async def dashboard(request: Request) -> Response:
            return Response(page(), media_type=HTML)

        async def numbers(request: Request) -> Response:
            return Response(msgspec.json.encode(self.view(replica)), media_type="application/json")

        return Route("/", dashboard, methods=["GET"]), Route("/api/fleet", numbers, methods=["GET"])

    def view(self, replica: "ReplicaServer") -> FleetView:
        now = time.monotonic()
        with self._lock:
            recent, outcomes = self._window.recent(now), dict(self._outcomes)
            span = self._window.span(now, self._started)
        state = replica.state
        engine = replica.engine or replica.pooling
        stats = engine.stats() if engine is not None else None
        problem = state.not_ready
        word = "draining" if state.draining else "starting" if stats is None else "down"
        if problem is None:
            word = "ready"
        rates = totals(
            recent,
            span,
            replica.devices,
            running=stats.running if stats is not None else 0,
            waiting=stats.waiting if stats is not None else 0,
            outcomes=outcomes,
        )
        return FleetView(
            title=state.model_name,
            version=__version__,
            uptime_seconds=now - self._started,
            status=word,
            totals=rates,
            latency=latency(recent),
            replicas=(
                ReplicaView(
                    name="replica",
                    pool="",
                    state=word,
                    why=problem or "",
                    models=(state.model_name,),
                    engine="shoal",
                    pid=os.getpid(),
                    age_seconds=now - self._started,
                    devices=replica.devices,
                    hit_ratio=rates.actual_hit_ratio,
                    tokens_per_second=rates.output_tokens_per_second,
                    ttft=_mean([ended.ttft for ended in recent]),
                    tpot=_mean([ended.tpot for ended in recent]),
                    **_load(stats),
                ),
            ),
        )


def _load(stats: EngineStats | None) -> dict[str, Any]:
    """What the engine says of itself, as fields of a `ReplicaView`."""
    if stats is None:
        return {}
    total = stats.kv_total_blocks
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "inflight": stats.running + stats.waiting,
        "kv_usage": stats.kv_used_blocks / total if total else None,
        "kv_capacity_tokens": total * stats.kv_block_tokens or None,
        "rank_waiting": waiting_share(stats.ranks),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
