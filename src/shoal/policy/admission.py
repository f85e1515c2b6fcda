"""Who gets in, who waits, and who is told at once to come back later.

A request that can't meet its target now is refused in microseconds, instead of waiting for nothing and making
everybody behind it late. Waiting requests leave by priority, then by fairness: a virtual token counter for each key
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), so that one key's flood delays itself.
"""

import heapq
import math
from dataclasses import dataclass

Key = str


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
class Ticket:
    """One request at the door."""

    id: str
    key: Key
    priority: int
    """Lower is served first."""
    prompt_tokens: int
    max_tokens: int
    lane: str = ""
    """What it waits for (a model): whoever waits for another one isn't held up."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """429: `reason` for people, `code` for programs, seconds until it would be accepted as far as is known."""

    code: str
    reason: str
    retry_after: float


class Admission:
    """The door of one gateway. No clock: `now` comes in."""

    def __init__(self, config: AdmissionConfig | None = None) -> None:
        self.config = config or AdmissionConfig()
        self._served: dict[Key, float] = {}
        """Virtual tokens of keys that wait or were served; the least served goes first."""
        self._heaps: dict[tuple[Key, str], list[tuple[int, float, int, str]]] = {}
        """Key and lane → heap of (priority, since, order, ticket id)."""
        self._tickets: dict[str, tuple[Ticket, float]] = {}
        self._order = 0
        self._queued_tokens = 0
        self._level = 0.0
        """The counter of whoever was served last: where newcomers start."""

    @property
    def queued(self) -> int:
        return len(self._tickets)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens waiting at the door."""
        return self._queued_tokens

    @property
    def judges(self) -> bool:
        """Whether anything can be refused early."""
        return self.config.ttft_target is not None or self.config.tpot_target is not None

    def judge(
        self, ticket: Ticket, predicted_ttft: float | None, drain_rate: float, predicted_tpot: float | None = None
    ) -> Refusal | None:
        """Refuse it now if it would be late anyway.

        `predicted_ttft`: seconds to its first token on the best replica, had it no queue at the door. `drain_rate`:
        prompt tokens a second that the replicas compute together, which is how fast the door's queue goes in. A
        backlog shrinks by a second a second, so the excess over the target is how long to stay away.
        `predicted_tpot`: seconds each further token would take it on the replica that is best at that; those whose
        tokens it would slow down as well end within about the time of an answer.
        """
        return self._late(predicted_ttft, drain_rate) or self._slow(ticket, predicted_tpot)

    def _slow(self, ticket: Ticket, predicted: float | None) -> Refusal | None:
        target = self.config.tpot_target
        if target is None or predicted is None or predicted <= target:
            return None
        return Refusal(
            "overloaded",
            f"an output token would take about {predicted * 1e3:.0f} ms; the target is {target * 1e3:g} ms",
            ticket.max_tokens * (predicted - target),
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

    def enqueue(self, ticket: Ticket, now: float, drain_rate: float) -> Refusal | None:
        """Let it wait for a slot; a refusal if the queue is full."""
        if len(self._tickets) >= self.config.max_queue:
            wait = self._queued_tokens / drain_rate if drain_rate > 0 else 1.0
            return Refusal("queue_full", f"{self.config.max_queue} requests are waiting already", max(1.0, wait))
        place = ticket.key, ticket.lane
        if place not in self._heaps:
            self._heaps[place] = []
            # Whoever was idle must not have saved up: it starts level with those who are served.
            self._served[ticket.key] = max(self._served.get(ticket.key, 0.0), self._floor())
        self._order += 1
        heapq.heappush(self._heaps[place], (ticket.priority, now, self._order, ticket.id))
        self._tickets[ticket.id] = (ticket, now)
        self._queued_tokens += ticket.prompt_tokens
        return None

    def leave(self, ticket_id: str) -> None:
        """It waits no longer: the client left, or time ran out."""
        found = self._tickets.pop(ticket_id, None)
        if found is not None:
            self._queued_tokens -= found[0].prompt_tokens
            self._prune((found[0].key, found[0].lane))

    def order(self, now: float, limit: int = 1) -> list[Ticket]:
        """Up to `limit` tickets that are next, each of another key or lane; they stay queued until `admit`."""
        ranked = []
        for place in list(self._heaps):
            self._prune(place)
            heap = self._heaps.get(place)
            if heap:
                priority, since, order, ticket_id = self._first(heap, now)
                ranked.append((priority, self._served[place[0]], since, order, ticket_id))
        ranked.sort()
        return [self._tickets[entry[-1]][0] for entry in ranked[:limit]]

    def admit(self, ticket: Ticket) -> None:
        """It goes in, queued before or not: its key pays for it."""
        self.leave(ticket.id)
        if self._heaps:
            cost = ticket.prompt_tokens + self.config.output_weight * ticket.max_tokens
            self._served[ticket.key] = self._served.get(ticket.key, self._floor()) + cost
            self._level = max(self._level, min(self._served[key] for key, _ in self._heaps))
        elif self._served:
            # Nobody waits: history is over.
            self._served.clear()
            self._level = 0.0

    def expired(self, now: float) -> list[Ticket]:
        """Tickets that waited too long; each still has to `leave`."""
        return [t for t, since in self._tickets.values() if now - since > self.config.max_wait]

    def _floor(self) -> float:
        return max(
            self._level, min((self._served[key] for key, _ in self._heaps if key in self._served), default=0.0)
        )

    def _first(self, heap: list[tuple[int, float, int, str]], now: float) -> tuple[int, float, int, str]:
        top = heap[0]
        oldest = min(heap, key=lambda entry: entry[1]) if len(heap) <= 64 else top
        if now - oldest[1] > self.config.starvation and oldest[3] in self._tickets:
            return (-(10**6), *oldest[1:])
        return top

    def _prune(self, place: tuple[Key, str]) -> None:
        heap = self._heaps.get(place)
        while heap and heap[0][3] not in self._tickets:
            heapq.heappop(heap)
        if heap is not None and not heap:
            del self._heaps[place]


def retry_after_header(seconds: float) -> str:
    """Whole seconds, at least 1, rounded up: earlier would be refused again."""
    return str(max(1, math.ceil(seconds)))
