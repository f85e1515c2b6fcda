"""One request on one replica: opened, read, and ended once with an outcome."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterable

from shoal.fleet.gateway.formats import error_of
from shoal.fleet.gateway.names import Names
from shoal.fleet.gateway.record import Observers, RequestRecord
from shoal.fleet.gateway.usage import Usage
from shoal.fleet.registry import Replica
from shoal.http.client import HttpResponse
from shoal.http.errors import ErrorBody
from shoal.policy.leases import Lease
from shoal.policy.outcomes import LegFailed, Outcome, outcome_of_status
from shoal.policy.routing import Decision

log = logging.getLogger("shoal.fleet")

_ERROR_LIMIT = 2**20
_UUID = re.compile(rb"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")


class Refused(LegFailed):
    """The replica says that the request is wrong: its answer is the client's."""

    def __init__(self, status: int, content_type: bytes, body: bytes) -> None:
        super().__init__(Outcome.CLIENT_ERROR, f"the replica refused it with {status}")
        self.status = status
        self.content_type = content_type
        self.body = body

    @property
    def error(self) -> ErrorBody:
        """What it says, for a stream that has begun."""
        detail = error_of(self.body)
        if detail is None:
            return ErrorBody(str(self), "invalid_request_error")
        code = None if detail.code is None else str(detail.code)
        return ErrorBody(detail.message, detail.type or "invalid_request_error", code=code)


class Leg:
    """Holds a lease. `end` it, always; only the first end counts."""

    def __init__(self, replica: Replica, decision: Decision, lease: Lease, model: str) -> None:
        """`model`: the name that the client asked for."""
        self.replica = replica
        self.decision = decision
        self.lease = lease
        handle = replica.handle
        self.names = Names(model, None if model in handle.adapters else handle.engine_model)
        self._answer: HttpResponse | None = None
        self._killed: LegFailed | None = None
        lease.kill = self._kill

    async def open(
        self, path: bytes, body: bytes, headers: Iterable[tuple[bytes, bytes]], seconds: float
    ) -> HttpResponse:
        """The replica's good answer; its head is there within `seconds`.

        Raises `Refused`, `LegFailed` or `TimeoutError`.
        """
        if not self.replica.handle.any_request_id:
            headers = [(name, value) for name, value in headers if name != b"x-request-id" or _UUID.match(value)]
        answer = await self.replica.endpoint.request(
            b"POST", path, self.names.request(body), headers, seconds=seconds, opened=self._opened
        )
        self._answer = answer
        outcome = outcome_of_status(answer.status)
        if outcome is Outcome.OK:
            return answer
        text = await answer.whole(_ERROR_LIMIT, seconds)
        if outcome is Outcome.CLIENT_ERROR:
            raise Refused(answer.status, answer.header(b"content-type"), text)
        raise LegFailed(
            outcome,
            f"replica {self.replica.name} answered {answer.status}",
            retry_after=_seconds(answer.header(b"retry-after")),
        )

    def _opened(self, kill: Callable[[LegFailed], None]) -> None:
        if self._killed is not None:
            kill(self._killed)
            return
        self.lease.kill = kill

    def _kill(self, error: LegFailed) -> None:
        self._killed = error

    def end(self, outcome: Outcome, now: float) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None
        if self.lease.outcome is None:
            self.lease.release(outcome, now)


def _seconds(value: bytes) -> float | None:
    with contextlib.suppress(ValueError):
        seconds = float(value)
        if 0 <= seconds < 86_400:
            return seconds
    return None


def learn(record: RequestRecord, leg: Leg, usage: Usage, observers: Observers | None) -> None:
    """What the engine counted, against what was predicted; `observers` None: it is of another replica."""
    record.actual_hit = cached = usage.cached
    if cached is None or record.continued or observers is None:
        return
    replica = leg.replica
    if replica.on_hit(leg.decision.predicted_hit, cached, usage.prompt_tokens):
        log.warning(
            "replica %s: predicted prefix hits don't come true (trust %.2f)", replica.name, replica.trust.value
        )
        observers.on_distrust(replica.name, replica.trust.value)
