"""From a request to a lease: route now, or wait in the admission queue until a replica has a slot.

Whoever waits is served in admission's order; a slot that comes free, a replica that comes back, wakes the next.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from shoal.fleet.registry import Registry
from shoal.http.errors import ApiError
from shoal.policy.admission import Admission, Refusal, retry_after_header
from shoal.policy.leases import Lease
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import Decision, NoReplica, Router, RouteRequest

_PUMP_WIDTH = 16
"""Clients whose next request is looked at when something comes free."""


@dataclass(slots=True)
class _Waiting:
    streams: bool
    granted: "asyncio.Future[tuple[Decision, Lease]]"


def refused(refusal: Refusal) -> ApiError:
    return ApiError(
        429,
        refusal.reason,
        kind="rate_limit_error",
        code=refusal.code,
        headers={"Retry-After": retry_after_header(refusal.retry_after)},
    )


class Dispatcher:
    """Owned by the gateway's event loop."""

    def __init__(self, registry: Registry, router: Router, admission: Admission) -> None:
        self._registry = registry
        self._router = router
        self._admission = admission
        self.on_chosen: Callable[[RouteRequest, str], None] | None = None
        """Told of every decision; for gateways that share them."""
        self._waiting: dict[RouteRequest, _Waiting] = {}
        self._leave: tuple[Callable[[], None], ...] = (
            registry.on_change(lambda name: self.pump()),
            registry.on_emptied(router.forget),
        )

    def close(self) -> None:
        """Hear no more of the registry: this gateway has ended."""
        leave, self._leave = self._leave, ()
        for end in leave:
            end()

    def admit(self, request: RouteRequest) -> None:
        """`ApiError` 429 if its tokens would come too late."""
        registry = self._registry
        refusal = self._admission.refusal(request, self._router, registry, registry.clock())
        if refusal is not None:
            raise refused(refusal)

    async def acquire(self, request: RouteRequest, *, streams: bool) -> tuple[Decision, Lease]:
        """A decision and its lease. `ApiError` 404, 429 or 503 says why there is none."""
        now = self._registry.clock()
        answer = None if self._admission.has_queue(request.model) else self._try(request, streams, now)
        if isinstance(answer, tuple):
            self._admission.admit(request)
            return answer
        seconds = self._admission.patience(request, answer)
        if answer is not None and not seconds:
            raise self._no_replica(answer, now)
        return await self._wait(request, streams, answer, seconds)

    def _try(self, request: RouteRequest, streams: bool, now: float) -> tuple[Decision, Lease] | NoReplica:
        decision = self._router.route(request, self._registry.states(now), now)
        if isinstance(decision, NoReplica):
            return decision
        if self.on_chosen is not None:
            self.on_chosen(request, decision.replica)
        return decision, self._registry.take(decision, request, streams=streams, now=now)

    async def _wait(
        self, request: RouteRequest, streams: bool, because: NoReplica | None, seconds: float
    ) -> tuple[Decision, Lease]:
        now = self._registry.clock()
        refusal = self._admission.enqueue(request, now, self._registry.drain_rate())
        if refusal is not None:
            raise refused(refusal)
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[tuple[Decision, Lease]] = loop.create_future()
        self._waiting[request] = _Waiting(streams, granted)
        try:
            self.pump()
            deadline = loop.time() + seconds
            while not granted.done():
                left = deadline - loop.time()
                if left <= 0:
                    raise self._no_replica(because or NoReplica("busy", f"no slot came free in {seconds:g} s"), now)
                # A breaker half-opens by time alone: nobody calls, so it is looked at.
                await asyncio.wait({granted}, timeout=min(0.25, left))
                if not granted.done():
                    self.pump()
        except BaseException:
            if granted.done():
                # Cancelled in the moment of being served: the lease must not be lost.
                granted.result()[1].release(Outcome.CANCELLED, self._registry.clock())
            raise
        finally:
            self._waiting.pop(request, None)
            self._admission.leave(request)
        return granted.result()

    def pump(self) -> None:
        """Serve whoever waits and can be served."""
        if not self._waiting:
            return
        now = self._registry.clock()
        progress = True
        while progress:
            progress = False
            for request in self._admission.order(now, _PUMP_WIDTH):
                waiting = self._waiting.get(request)
                if waiting is None or waiting.granted.done():
                    self._admission.leave(request)
                    continue
                answer = self._try(request, waiting.streams, now)
                if isinstance(answer, NoReplica):
                    continue
                self._admission.admit(request)
                del self._waiting[request]
                waiting.granted.set_result(answer)
                progress = True

    def _no_replica(self, why: NoReplica, now: float) -> ApiError:
        if why.kind == "model":
            return ApiError(404, why.reason, param="model", code="model_not_found")
        wait = self._registry.seconds_to_probe(now)
        code = "overloaded" if why.kind == "busy" else "no_replica"
        return ApiError(
            503,
            why.reason,
            kind="service_unavailable_error",
            code=code,
            headers={"Retry-After": retry_after_header(wait)},
        )
