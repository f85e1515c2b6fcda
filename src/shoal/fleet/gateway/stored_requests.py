"""`GET` and `DELETE /v1/responses/{id}`: relayed to the replica that keeps the response."""

import contextlib
from urllib.parse import quote

from starlette.types import Scope, Send

from shoal.fleet.gateway.config import GatewayConfig
from shoal.fleet.gateway.names import Names
from shoal.fleet.gateway.record import RequestRecord
from shoal.fleet.gateway.replies import failed
from shoal.fleet.gateway.stored import StoredResponses
from shoal.fleet.registry import Registry
from shoal.http.errors import ApiError
from shoal.policy.outcomes import LegFailed, outcome_of_exception

PREFIX = "/v1/responses/"
_SECONDS = 30.0
"""A replica looks it up in its memory."""


def response_id_of(path: str) -> str | None:
    """Return the response that a path names; None: the path is another."""
    identity = path.removeprefix(PREFIX)
    return identity if path.startswith(PREFIX) and identity and "/" not in identity else None


async def answer_stored(
    scope: Scope,
    send: Send,
    record: RequestRecord,
    response_id: str,
    *,
    stored: StoredResponses,
    registry: Registry,
    config: GatewayConfig,
) -> None:
    """Relay a request for a stored response of the key `record.key`.

    Raises `ApiError`: 404 where this gateway relayed no such response for this key, or its replica has gone; 405;
    502 or 504 where the replica does not answer.
    """
    method: str = scope["method"]
    if method not in ("GET", "DELETE"):
        message = f"{method[:20]} is not allowed here; use GET or DELETE"
        raise ApiError(405, message, code="method_not_allowed", headers={"Allow": "GET, DELETE"})
    owner = stored.find(response_id, record.key)
    if owner is None or owner.replica not in registry:
        message = f"there is no response {response_id[:100]!r}: not made here by this key, or its replica has gone"
        raise ApiError(404, message, param="response_id", code="not_found")
    replica = registry.get(owner.replica)
    record.model, record.replica = owner.model, owner.replica
    path = (PREFIX + quote(response_id, safe="")).encode()
    if scope["query_string"]:
        path += b"?" + scope["query_string"]
    headers = [(b"x-request-id", record.request_id.encode())]
    try:
        request = replica.endpoint.request(method.encode(), path, headers=headers, seconds=_SECONDS)
        with contextlib.closing(await request) as answer:
            status, kind = answer.status, answer.header(b"content-type")
            body = await answer.whole(config.max_answer_bytes, _SECONDS)
    except (LegFailed, TimeoutError) as error:
        raise failed(error, outcome_of_exception(error)) from None
    if method == "DELETE" and status == 200:
        stored.forget(response_id)
    body = Names(owner.model, replica.handle.engine_model).answer(body)
    record.status, record.bytes_sent = status, len(body)
    sent = [
        (b"content-type", kind or b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", record.request_id.encode()),
        (b"x-shoal-replica", owner.replica.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})
