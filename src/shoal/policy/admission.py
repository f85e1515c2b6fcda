"""Who gets in, who waits, and who is told at once to come back later.

A request that can't meet its target now is refused in microseconds, instead of waiting for nothing and making
everybody behind it late. Waiting requests leave by priority, then by fairness: a virtual token counter per client
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), so that one client's flood delays itself.
"""

import heapq
import math
from dataclasses import dataclass

from shoal.policy.replicas import Account, ReplicaAccounts
from shoal.policy.routing.contracts import NoReplica, RouteRequest
from shoal.policy.routing.router import Router

_Waiting = tuple[int, float, int, RouteRequest]
"""Priority, since when, order of arrival, request: what is least leaves first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    max_queue: int = 1024
    """Requests that may wait at the gateway for a replica's slot."""
    max_wait: float = 60.0
    """Seconds after which a waiting request is refused."""
    ttft_target: float | None = None
    """Seconds; a request predicted to exceed it is refused at once. None: no early rejection by it."""
    tpot_target: float | None = None
    """Seconds an output token after the first; likewise."""
    output_weight: float = 2.0
    """What an output token costs against a prompt token, for fairness."""
    starvation: float = 20.0
    """Seconds of waiting after which priorities no longer count against a request."""

    def __post_init__(self) -> None:
        if self.max_queue < 0:
            raise ValueError(f"admission.max_queue is {self.max_queue}; it must be at least 0")
        for name in ("ttft_target", "tpot_target"):
            target = getattr(self, name)
            if target is not None and not target > 0:
                raise ValueError(f"admission.{name} is {target}; it must be greater than 0 seconds")
        if not self.max_wait > 0:
            raise ValueError(f"admission.max_wait is {self.max_wait}; it must be greater than 0 seconds")


@dataclass(frozen=True, slots=True)
class Refusal:
    """429: `reason` for people, `code` for programs, seconds until it would be accepted as far as is known."""

    code: str
    reason: str
    retry_after: float


class Admission:
    """The admission queue of one gateway. No clock: `now` comes in."""

    def __init__(self, config: AdmissionConfig | None = None, down_seconds: float = 5.0) -> None:
        """`down_seconds`: how long a request waits while no replica of its model is available."""
        self._down_seconds = down_seconds
        self.config = config or AdmissionConfig()
        self._served: dict[str, float] = {}
        """Virtual tokens of clients that wait or were served; the least served goes first."""
        self._heaps: dict[tuple[str, str], list[_Waiting]] = {}
        """Per client and model: whoever waits for another model isn't held up."""
        self._queued: set[RouteRequest] = set()
        self._order = 0
        self._queued_tokens = 0
        self._level = 0.0
        """The counter of whoever was served last: where newcomers start."""

    @property
    def queued(self) -> int:
        return len(self._queued)

    def has_queue(self, model: str) -> bool:
        """Whether requests for a model wait: then the next one waits behind them, and nobody overtakes."""
        return bool(self._heaps) and any(model == queued for _, queued in self._heaps)

    def patience(self, request: RouteRequest, why: NoReplica | None) -> float:
        """Return how many seconds a request that got no replica may wait for one; 0: it is refused now.

        `why` None: others wait for the same. One that another replica has failed isn't held up where all are down.
        """
        if why is None or why.kind == "busy":
            return self.config.max_wait
        return 0.0 if why.kind == "model" or request.excluded else self._down_seconds

    @property
    def judges(self) -> bool:
        """Whether anything can be refused early."""
        return self.config.ttft_target is not None or self.config.tpot_target is not None

    def refusal(
        self, request: RouteRequest, router: Router, replicas: ReplicaAccounts[Account], now: float
    ) -> Refusal | None:
        """Refuse a request that would be late; None: it may come in.

        Where a replica is idle, nothing is refused: nobody is slowed down, and a replica that is believed to be
        slow can show otherwise.
        """
        if not self.judges or replicas.idle(request.model):
            return None
        predicted = router.predict(request, replicas.states(now), now)
        return self.judge(request, predicted, replicas.drain_rate(), replicas.predicted_tpot(request.model))

    def judge(
        self,
        request: RouteRequest,
        predicted_ttft: float | None,
        drain_rate: float,
        predicted_tpot: float | None = None,
    ) -> Refusal | None:
        """Refuse it now if it would be late anyway.

        `predicted_ttft`: seconds to its first token on the best replica, had it no admission queue. `drain_rate`:
        prompt tokens per second that the replicas compute together, which is how fast the queue goes in. A backlog
        shrinks by a second per second, so the excess over the target is how long to stay away.
        `predicted_tpot`: seconds each further token would take it on the replica that is best at that; those whose
        tokens it would slow down as well end within about the time of an answer.
        """
        return self._late(predicted_ttft, drain_rate) or self._slow(request, predicted_tpot)

    def _slow(self, request: RouteRequest, predicted: float | None) -> Refusal | None:
        target = self.config.tpot_target
        if target is None or predicted is None or predicted <= target:
            return None
        return Refusal(
            "overloaded",
            f"an output token would take about {predicted * 1e3:.0f} ms; the target is {target * 1e3:g} ms",
            request.max_tokens * (predicted - target),
        )

    def _late(self, predicted_ttft: float | None, drain_rate: float) -> Refusal | None:
        target = self.config.ttft_target
        if target is None or predicted_ttft is None:
            return None
        ahead = self._queued_tokens / drain_rate if drain_rate > 0 else 0.0
        total = predicted_ttft + ahead
        if total <= target:
            return None
        return Refusal(
            "overloaded",
            f"the first token would come after about {total:.1f} s; the target is {target:g} s",
            total - target,
        )

    def enqueue(self, request: RouteRequest, now: float, drain_rate: float) -> Refusal | None:
        """Let it wait for a slot; a refusal if the queue is full."""
        if len(self._queued) >= self.config.max_queue:
            wait = self._queued_tokens / drain_rate if drain_rate > 0 else 1.0
            return Refusal("queue_full", f"{self.config.max_queue} requests are waiting already", max(1.0, wait))
        place = request.client, request.model
        if place not in self._heaps:
            self._heaps[place] = []
            # Whoever was idle must not have saved up: it starts level with those who are served.
            self._served[request.client] = max(self._served.get(request.client, 0.0), self._floor())
        self._order += 1
        heapq.heappush(self._heaps[place], (request.priority, now, self._order, request))
        self._queued.add(request)
        self._queued_tokens += request.prompt_tokens
        return None

    def leave(self, request: RouteRequest) -> None:
        """It waits no longer: the client left, or time ran out."""
        if request in self._queued:
            self._queued.remove(request)
            self._queued_tokens -= request.prompt_tokens
            self._prune((request.client, request.model))

    def order(self, now: float, limit: int = 1) -> list[RouteRequest]:
        """Up to `limit` requests that are next, each of another client or model; they stay queued until `admit`."""
        ranked = []
        for place in list(self._heaps):
            self._prune(place)
            heap = self._heaps.get(place)
            if heap:
                priority, since, order, request = self._first(heap, now)
                ranked.append((priority, self._served[place[0]], since, order, request))
        ranked.sort()
        return [entry[-1] for entry in ranked[:limit]]

    def admit(self, request: RouteRequest) -> None:
        """It goes in, queued before or not: its client pays for it."""
        self.leave(request)
        if self._heaps:
            cost = request.prompt_tokens + self.config.output_weight * request.max_tokens
            self._served[request.client] = self._served.get(request.client, self._floor()) + cost
            self._level = max(self._level, min(self._served[client] for client, _ in self._heaps))
        elif self._served:
            # Nobody waits: history is over.
            self._served.clear()
            self._level = 0.0

    def _floor(self) -> float:
        waiting = (self._served[client] for client, _ in self._heaps if client in self._served)
        return max(self._level, min(waiting, default=0.0))

    def _first(self, heap: list[_Waiting], now: float) -> _Waiting:
        top = heap[0]
        oldest = min(heap, key=lambda entry: entry[1]) if len(heap) <= 64 else top
        if now - oldest[1] > self.config.starvation and oldest[3] in self._queued:
            return (-(10**6), *oldest[1:])
        return top

    def _prune(self, place: tuple[str, str]) -> None:
        heap = self._heaps.get(place)
        while heap and heap[0][3] not in self._queued:
            heapq.heappop(heap)
        if heap is not None and not heap:
            del self._heaps[place]


def retry_after_header(seconds: float) -> str:
    """Whole seconds, at least 1, rounded up: earlier would be refused again."""
    return str(max(1, math.ceil(seconds)))
