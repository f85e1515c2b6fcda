"""Ids of requests, and the status of those whose client left."""

import random
import re

_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:\-]{1,128}$")
CLIENT_CLOSED = 499
"""Status in log and metrics of a request whose client left before the answer (nginx's convention)."""


def request_id(given: str) -> str:
    """Return the id that a client brought, or a new one. A UUID: some engines refuse any other id."""
    if given and _REQUEST_ID.match(given):
        return given
    # `uuid.uuid4` takes ten times as long, a call to the kernel included. The id has to be unique, not secret.
    bits = random.getrandbits(128) & ~(0xF000C << 60) | 0x40008 << 60
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
