"""Responses that a replica keeps in its memory: which one has which, and whose they are."""

from collections import OrderedDict
from dataclasses import dataclass

from shoal.fleet.gateway.body import Parsed, text_of
from shoal.fleet.registry import Registry
from shoal.http.errors import ApiError
from shoal.policy.routing import RouteRequest

_MAX_KNOWN = 65_536


@dataclass(frozen=True, slots=True)
class Owner:
    replica: str
    key: str
    """Name of the key that it was made for."""
    model: str
    """As the client called it."""


class StoredResponses:
    """What a gateway remembers of them: a later request goes to the replica that has the conversation."""

    def __init__(self, max_known: int = _MAX_KNOWN) -> None:
        self._owners: OrderedDict[str, Owner] = OrderedDict()
        self._max_known = max_known

    def note(self, response_id: str, owner: Owner) -> None:
        self._owners[response_id] = owner
        while len(self._owners) > self._max_known:
            self._owners.popitem(last=False)

    def find(self, response_id: str, key: str) -> Owner | None:
        """Return who keeps it; None where it is not known, or another key's."""
        owner = self._owners.get(response_id)
        return owner if owner is not None and owner.key == key else None

    def forget(self, response_id: str) -> None:
        self._owners.pop(response_id, None)

    def pin(self, parsed: Parsed, key: str, route: RouteRequest, registry: Registry) -> None:
        """Send a request that goes on from a response to the replica that keeps it. `ApiError` 400: not this key's.

        One that was made before this gateway, or whose replica has gone, may go anywhere: replicas say that they
        don't have it.
        """
        previous = text_of(parsed.ask.previous_response_id) if parsed.endpoint == "responses" else None
        owner = self._owners.get(previous) if previous else None
        if owner is None:
            return
        if owner.key != key:
            raise ApiError(
                400,
                f"previous_response_id: there is no response {str(previous)[:100]!r}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if owner.replica in registry:
            route.excluded = frozenset(r.name for r in registry.replicas if r.name != owner.replica)
