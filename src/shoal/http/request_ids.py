"""Ids of requests, and the status of those whose client left."""

import re
import uuid

_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:\-]{1,128}$")
CLIENT_CLOSED = 499
"""Status in log and metrics of a request whose client left before the answer (nginx's convention)."""


def request_id(given: str) -> str:
    """Return the id that a client brought, or a new one. A UUID: some engines refuse any other id."""
    return given if _REQUEST_ID.match(given) else str(uuid.uuid4())
