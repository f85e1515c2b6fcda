"""The words of a gateway: headers of its answers, and what faults are to a client."""

from shoal.fleet.gateway.formats import ErrorDetail, failure_of
from shoal.fleet.gateway.leg import Leg, Refused
from shoal.fleet.gateway.record import RequestRecord
from shoal.fleet.gateway.reply import Headers
from shoal.http.errors import ApiError, ErrorBody, error_json
from shoal.policy.admission import retry_after_header
from shoal.policy.outcomes import MEANINGS, LegFailed, Outcome


def answer_headers(record: RequestRecord, leg: Leg, content_type: bytes) -> Headers:
    """Headers that say who answered, and why it was chosen."""
    return [
        (b"content-type", content_type),
        (b"x-request-id", record.request_id.encode()),
        (b"x-shoal-replica", leg.replica.name.encode()),
        (b"x-shoal-reason", leg.decision.reason.encode("latin-1", "replace")),
        (b"x-shoal-predicted-hit", b"%d" % leg.decision.predicted_hit),
    ]


def refusal_of(detail: ErrorDetail) -> Refused | None:
    """What an error event before any output means as an answer; None: it is no refusal of the request."""
    if failure_of(detail).outcome is not Outcome.CLIENT_ERROR:
        return None
    status = detail.code if isinstance(detail.code, int) else 400
    body = ErrorBody(detail.message, detail.type or "invalid_request_error", code=str(detail.code or "") or None)
    return Refused(status, b"application/json", error_json(body))


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
