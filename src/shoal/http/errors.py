"""Errors in OpenAI's shape (`message`, `type`, `param`, `code`), naming the field and what is accepted.

Under `/v1/messages` they are sent in Anthropic's shape.
"""

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Scope

JSON_TYPE = "application/json"


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


class MessagesErrorBody(msgspec.Struct, frozen=True):
    type: str
    message: str


class MessagesErrorResponse(msgspec.Struct, frozen=True):
    """Anthropic's shape of an error; also the data of an `error` event."""

    error: MessagesErrorBody
    request_id: str | None = None
    type: str = "error"


MESSAGES_PATH = "/v1/messages"
_MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's `error.type` by status; below 500 all others are `invalid_request_error`, above `api_error`."""


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

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """Return the same error for a client that knows the field, or the one that it lies in, by another name."""
        old = self.body.param or ""
        known = next((name for name in names if old == name or old.startswith((f"{name}.", f"{name}["))), None)
        if known is None:
            return self
        new = names[known] + old[len(known) :]
        message = self.body.message
        if message.startswith(f"{old}:"):
            message = new + message[len(old) :]
        return ApiError(
            self.status, message, kind=self.body.type, param=new, code=self.body.code, headers=self.headers
        )


def bad_value(field: str, value: object, accepted: str) -> ApiError:
    """400 for a field whose value is of the right type but out of range or unsupported."""
    message = f"{field}: {shown(value)} is not accepted; {accepted}"
    return ApiError(400, message, param=field, code="invalid_value")


def needs(field: str, other: str) -> ApiError:
    """400 for a field that has no meaning without `other`, a field and its value."""
    return ApiError(400, f"{field} needs {other}", param=field, code="invalid_value")


def unavailable(message: str, code: str) -> ApiError:
    """503: this replica can't answer now; another one, or the same one later, can."""
    return ApiError(503, message, kind="service_unavailable_error", code=code, headers={"Retry-After": "1"})


def shutting_down() -> ApiError:
    return unavailable("the server is shutting down", "shutting_down")


def unsupported_media_type(media: str) -> ApiError:
    return ApiError(
        415,
        f"Content-Type {shown(media)} is not accepted; send application/json",
        param="Content-Type",
        code="unsupported_media_type",
    )


def body_too_large(limit: int) -> ApiError:
    """`limit` in bytes. The connection is closed: what is left of the body is not read."""
    return ApiError(
        413,
        f"the body is larger than is accepted here ({limit} bytes)",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def body_timeout(seconds: float) -> ApiError:
    return ApiError(
        408,
        f"the body did not arrive within {seconds:g} s",
        code="request_timeout",
        headers={"Connection": "close"},
    )


CONTEXT_EXCEEDED = "context_length_exceeded"


def prompt_too_long(limit: int, least: int, field: str) -> ApiError:
    """400 for a prompt of `least` tokens or more, where a context has `limit`."""
    return ApiError(
        400,
        f"the context of this model is {limit} tokens; the prompt has {least} at the least: "
        f"shorten it to at most {limit - 1} tokens",
        param=field,
        code=CONTEXT_EXCEEDED,
    )


def in_messages_words(error: ApiError) -> ApiError:
    """Of an error about the context, the words by which Claude Code knows that it has to compact a conversation."""
    if error.body.code != CONTEXT_EXCEEDED:
        return error
    message = f"prompt is too long: {error.body.message}"
    return ApiError(error.status, message, param="messages", code=CONTEXT_EXCEEDED)


def internal_error(request_id: str) -> ApiError:
    """500 that says nothing of our insides; the log line with the same request id says it all."""
    return ApiError(
        500,
        f"internal error; the server's log has it under request {request_id}",
        kind="server_error",
        code="internal_error",
    )


def error_response(error: ApiError, scope: Scope) -> Response:
    """The error in the shape of the API that `scope` was sent to."""
    body = error_json(error.body)
    if is_messages_path(scope["path"]):
        body = messages_error_json(error.status, error.body.message, scope.get("state", {}).get("request_id"))
    return Response(body, status_code=error.status, media_type=JSON_TYPE, headers=error.headers)


def error_json(body: ErrorBody) -> bytes:
    return msgspec.json.encode(ErrorResponse(body))


def is_messages_path(path: str) -> bool:
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


def messages_error_json(status: int, message: str, request_id: str | None) -> bytes:
    """An error in Anthropic's shape."""
    kind = _MESSAGES_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode(MessagesErrorResponse(MessagesErrorBody(kind, message), request_id))


def shown(value: object, limit: int = 80) -> str:
    """A value as it may be quoted in a message: short, and never more than the client sent."""
    # JSON's own words for what isn't text: true, null, {"a": 1}.
    text = repr(value) if isinstance(value, str) else _as_json(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _as_json(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)
