"""Who a client is, and how much it may ask for."""

import hmac

from shoal.fleet.gateway.config import KeyConfig, KeyScope
from shoal.fleet.gateway.dispatch import refused
from shoal.http.errors import ApiError
from shoal.http.keys import bearer_digest, invalid_key
from shoal.policy.limits import RateLimit


class Client:
    """Someone who may come in: a key, or everybody where there are none."""

    def __init__(self, config: KeyConfig | None) -> None:
        self.name = config.name if config else "anonymous"
        self.priority = config.priority if config else None
        self._scopes = frozenset(config.scopes) if config else None
        self._models = frozenset(config.models) if config and config.models is not None else None
        limits = (config.requests_per_minute, config.tokens_per_minute) if config else (None, None)
        self._limit = RateLimit(*limits)

    def may_use(self, model: str) -> bool:
        return self._models is None or model in self._models

    def demand(self, scope: KeyScope) -> None:
        """Raise `ApiError` 403 unless its key has this scope."""
        if self._scopes is not None and scope not in self._scopes:
            raise ApiError(
                403,
                f"this key doesn't have the scope {scope!r}, which is needed here",
                kind="permission_error",
                code="missing_scope",
            )

    def charge(self, tokens: int, now: float) -> None:
        """Count a request of about so many tokens; `ApiError` 429 if that exceeds its rate."""
        refusal = self._limit.charge(tokens, now)
        if refusal is not None:
            raise refused(refusal)

    def settle(self, charged: int, used: int) -> None:
        """The request ended: what it really used replaces what was charged."""
        self._limit.settle(charged, used)


class Clients:
    """All keys, as digests. No key is kept, logged, or told apart by how long a refusal takes."""

    def __init__(self, keys: tuple[KeyConfig, ...]) -> None:
        self._known = tuple((bytes.fromhex(key.sha256), Client(key)) for key in keys)
        self._anyone = None if keys else Client(None)

    def identify(self, authorization: bytes) -> Client:
        """The client of an Authorization header; `ApiError` 401 if there are keys and it has none of them."""
        if self._anyone is not None:
            return self._anyone
        given, is_bearer = bearer_digest(authorization)
        found: Client | None = None
        for digest, client in self._known:
            # Every key is compared, also after a match.
            if hmac.compare_digest(given, digest):
                found = client
        if found is None or not is_bearer:
            raise invalid_key()
        return found
