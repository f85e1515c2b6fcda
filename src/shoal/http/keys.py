"""API keys: compared as digests in constant time, so that no dump, log or delay shows one."""

import hashlib
import hmac

from shoal.http.errors import ApiError


def bearer_digest(authorization: bytes) -> tuple[bytes, bool]:
    """Return the SHA-256 of the token in an Authorization header's value, and whether its scheme is `Bearer`."""
    scheme, _, token = authorization.partition(b" ")
    return _digest(token), scheme.lower() == b"bearer"


def invalid_key() -> ApiError:
    """Return the 401 of a request that has no key, or none that is known."""
    return ApiError(
        401,
        "a valid API key is required: send `Authorization: Bearer KEY` or `x-api-key: KEY`",
        kind="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


class ApiKey:
    """The one key that clients must send."""

    def __init__(self, key: str) -> None:
        self._known = hashlib.sha256(key.encode()).digest()

    def __repr__(self) -> str:
        return "ApiKey(…)"

    def accepts(self, authorization: bytes, x_api_key: bytes = b"") -> bool:
        """Compare the raw values of the two headers that may hold a key; one is enough."""
        digest, is_bearer = bearer_digest(authorization)
        bearer = hmac.compare_digest(digest, self._known) and is_bearer
        return hmac.compare_digest(_digest(x_api_key), self._known) or bearer


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token.strip()).digest()
