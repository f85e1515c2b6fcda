"""Bugs that are planted to see that they are found: each patches the fleet's code for as long as it is entered."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from shoal.fleet.gateway.exchange import Exchange
from shoal.fleet.gateway.leg import Leg
from shoal.policy.breaker import Breaker
from shoal.policy.leases import Lease
from shoal.policy.outcomes import Outcome


@contextlib.contextmanager
def lease_released_twice() -> Iterator[None]:
    """A leg that its client left gives its lease back twice, past the check that would say so."""
    release = Lease.release

    def twice(self: Lease, outcome: Outcome, now: float) -> None:
        release(self, outcome, now)
        if outcome is Outcome.CANCELLED:
            self.holder.on_released(self)

    with mock.patch.object(Lease, "release", twice):
        yield


@contextlib.contextmanager
def retry_after_the_first_byte() -> Iterator[None]:
    """A request is begun again on another replica although its client has part of an answer."""
    is_last = Exchange._is_last

    async def again(self: Any, leg: Leg, error: Any) -> bool:
        said, self._said = self._said, False
        try:
            return await is_last(self, leg, error)
        finally:
            self._said = said

    with mock.patch.object(Exchange, "_is_last", again):
        yield


@contextlib.contextmanager
def breaker_that_never_closes() -> Iterator[None]:
    """A probe that went well leaves the breaker open."""

    def record(self: Any, outcome: Outcome, now: float, era: int) -> None:
        if not self._open or outcome is not Outcome.OK:
            original(self, outcome, now, era)

    original = Breaker.record
    with mock.patch.object(Breaker, "record", record):
        yield


PLANTED: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "a lease released twice": lease_released_twice,
    "a retry after the first byte": retry_after_the_first_byte,
    "a breaker that never closes": breaker_that_never_closes,
}
