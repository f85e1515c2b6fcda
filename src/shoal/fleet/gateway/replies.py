"""The words of a gateway: headers of its answers, and what faults are to a client."""

from shoal.engine.server.errors import ApiError
from shoal.fleet.gateway.leg import Leg
from shoal.fleet.gateway.record import RequestRecord
from shoal.fleet.gateway.sse import error_of, payloads
from shoal.policy.admission import retry_after_header
from shoal.policy.outcomes import MEANINGS, LegFailed, Outcome

Headers = list[tuple[bytes, bytes]]
ERROR_EVENT = b'data: {"error"'


def answer_headers(record: RequestRecord, leg: Leg, content_type: bytes) -> Headers:
    """Headers that say who answered, and why it was chosen."""
    return [
        (b"content-type", content_type),
        (b"x-request-id", record.request_id.encode()),
        (b"x-shoal-replica", leg.replica.name.encode()),
        (b"x-shoal-reason", leg.decision.reason.encode("latin-1", "replace")),
        (b"x-shoal-predicted-hit", b"%d" % leg.decision.predicted_hit),
    ]


def until_error(events: bytes) -> tuple[bytes, LegFailed | None]:
    """What comes before an error event, and what the error means."""
    at = events.index(ERROR_EVENT)
    detail = error_of(payloads(events[at:])[0])
    if detail is None:
        return events, None
    code = detail.code
    client = isinstance(code, int) and 400 <= code < 500 and code != 429
    outcome = Outcome.CLIENT_ERROR if client else Outcome.REPLICA_FAULT
    return events[:at], LegFailed(outcome, f"the replica reports: {detail.message[:300]}")


def closed(body: bytes) -> bool:
    """Whether a JSON object ends where it should: the cheap part of a check for garbage."""
    return body[:1] == b"{" and body.rstrip()[-1:] == b"}"


def failed(error: BaseException, outcome: Outcome) -> ApiError:
    """What the client is told where no replica could answer."""
    status = MEANINGS[outcome].status
    headers = {}
    if outcome is Outcome.BACKPRESSURE:
        wait = error.retry_after if isinstance(error, LegFailed) and error.retry_after is not None else 1.0
        headers["Retry-After"] = retry_after_header(wait)
    kind = "service_unavailable_error" if outcome is Outcome.BACKPRESSURE else "server_error"
    message = str(error) or "no replica answered in time"
    return ApiError(status, message, kind=kind, code=outcome.value, headers=headers)
