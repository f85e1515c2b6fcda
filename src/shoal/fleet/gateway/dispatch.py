"""Waiting for a lease: `policy.dispatch` on the gateway's event loop, its refusals as HTTP errors.

A slot that comes free, a replica that comes back, wakes whoever is next.
"""

import asyncio
from collections.abc import Callable

from shoal.fleet.registry import Registry
from shoal.http.errors import ApiError
from shoal.policy.admission import Admission, Refusal, retry_after_header
from shoal.policy.dispatch import LOOK_SECONDS, Dispatch, Placed, Queued
from shoal.policy.outcomes import Outcome
from shoal.policy.routing import NoReplica, Router, RouteRequest


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
        self._dispatch = Dispatch(registry, router, admission)
        self._granted: dict[RouteRequest, asyncio.Future[Placed]] = {}
        self._leave: tuple[Callable[[], None], ...] = (
            registry.on_change(lambda name: self.pump()),
            registry.on_emptied(router.forget),
        )

    def tell(self, on_chosen: Callable[[RouteRequest, str], None]) -> None:
        """Call `on_chosen` with every decision."""
        self._dispatch.on_chosen = on_chosen

    def close(self) -> None:
        """Hear no more of the registry: this gateway has ended."""
        leave, self._leave = self._leave, ()
        for end in leave:
            end()

    def admit(self, request: RouteRequest) -> None:
        """`ApiError` 429 if its tokens would come too late."""
        refusal = self._dispatch.refusal(request, self._registry.clock())
        if refusal is not None:
            raise refused(refusal)

    async def acquire(self, request: RouteRequest, *, streams: bool) -> Placed:
        """A decision and its lease. `ApiError` 404, 429 or 503 says why there is none."""
        now = self._registry.clock()
        answer = self._dispatch.place(request, streams=streams, now=now)
        if isinstance(answer, Refusal):
            raise refused(answer)
        if isinstance(answer, NoReplica):
            raise self._no_replica(answer, now)
        return await self._wait(request, answer, now) if isinstance(answer, Queued) else answer

    async def _wait(self, request: RouteRequest, queued: Queued, now: float) -> Placed:
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[Placed] = loop.create_future()
        self._granted[request] = granted
        try:
            self.pump()
            deadline = loop.time() + queued.seconds
            while not granted.done():
                left = deadline - loop.time()
                if left <= 0:
                    raise self._no_replica(queued.late, now)
                await asyncio.wait({granted}, timeout=min(LOOK_SECONDS, left))
                if not granted.done():
                    self.pump()
        except BaseException:
            if granted.done():
                # Cancelled in the moment of being served: the lease must not be lost.
                granted.result().lease.release(Outcome.CANCELLED, self._registry.clock())
            raise
        finally:
            self._granted.pop(request, None)
            self._dispatch.leave(request)
        return granted.result()

    def pump(self) -> None:
        """Serve whoever waits and can be served."""
        if self._granted:
            for request, placed in self._dispatch.pump(self._registry.clock()):
                self._granted.pop(request).set_result(placed)

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
