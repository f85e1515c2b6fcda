"""Errors in OpenAI's shape (`message`, `type`, `param`, `code`), naming the field and what is accepted."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

JSON_TYPE = "application/json"


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


class ApiError(Exception):
    """A request that can't be answered, with the HTTP status and what the client may do about it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message=message, type=kind, param=param, code=code)
        self.headers = dict(headers or {})


def bad_value(field: str, value: object, accepted: str) -> ApiError:
    """400 for a field whose value is of the right type but out of range or unsupported."""
    message = f"{field}: {shown(value)} is not accepted; {accepted}"
    return ApiError(400, message, param=field, code="invalid_value")


def unavailable(message: str, code: str) -> ApiError:
    """503: this replica can't answer now; another one, or the same one later, can."""
    return ApiError(503, message, kind="service_unavailable_error", code=code, headers={"Retry-After": "1"})


def shutting_down() -> ApiError:
    return unavailable("the server is shutting down", "shutting_down")


def internal_error(request_id: str) -> ApiError:
    """500 that says nothing of our insides; the log line with the same request id says it all."""
    return ApiError(
        500,
        f"internal error; the server's log has it under request {request_id}",
        kind="server_error",
        code="internal_error",
    )


def error_response(error: ApiError) -> Response:
    return Response(error_json(error.body), status_code=error.status, media_type=JSON_TYPE, headers=error.headers)


def error_json(body: ErrorBody) -> bytes:
    return msgspec.json.encode(ErrorResponse(body))


def shown(value: object, limit: int = 80) -> str:
    """A value as it may be quoted in a message: short, and never more than the client sent."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
