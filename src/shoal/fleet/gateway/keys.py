"""Who a client is, and how much it may ask for."""

import hmac
from dataclasses import dataclass

from shoal.fleet.gateway.config import KeyConfig, KeyScope
from shoal.http.errors import ApiError
from shoal.http.keys import bearer_digest, invalid_key
from shoal.policy.admission import retry_after_header


@dataclass(slots=True)
class _Bucket:
    """`per_minute` a minute, a minute's worth at most."""

    per_minute: float
    level: float
    at: float

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; 0: now. More than a minute's worth may go once it is full."""
        self.level = min(self.per_minute, self.level + (now - self.at) * self.per_minute / 60)
        self.at = now
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing * 60 / self.per_minute)

    def take(self, amount: float) -> None:
        self.level -= amount


class Client:
    """Someone who may come in: a key, or everybody where there are none."""

    def __init__(self, config: KeyConfig | None) -> None:
        self.name = config.name if config else "anonymous"
        self.priority = config.priority if config else None
        self._scopes = frozenset(config.scopes) if config else None
        self._models = frozenset(config.models) if config and config.models is not None else None
        self._requests = _bucket(config.requests_per_minute if config else None)
        self._tokens = _bucket(config.tokens_per_minute if config else None)

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
        for bucket, amount, what in ((self._requests, 1, "requests"), (self._tokens, tokens, "tokens")):
            if bucket is not None and (wait := bucket.wait(amount, now)) > 0:
                raise ApiError(
                    429,
                    f"rate limit of this key: {bucket.per_minute:g} {what} a minute",
                    kind="rate_limit_error",
                    code="rate_limit_exceeded",
                    headers={"Retry-After": retry_after_header(wait)},
                )
        if self._requests is not None:
            self._requests.take(1)
        if self._tokens is not None:
            self._tokens.take(tokens)

    def settle(self, charged: int, used: int) -> None:
        """The request ended: what it really used replaces what was charged."""
        if self._tokens is not None:
            self._tokens.take(used - charged)


def _bucket(per_minute: int | None) -> _Bucket | None:
    return _Bucket(float(per_minute), float(per_minute), 0.0) if per_minute is not None else None


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
