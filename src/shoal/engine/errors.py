"""Errors of one replica: each names what was wrong and what would be accepted. No traceback reaches a user."""

from typing import ClassVar


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class _InvalidValue(EngineError, ValueError):
    """A value that cannot be used: field, value, what is accepted."""

    verdict: ClassVar[str]

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field}={value!r} {self.verdict}: expected {accepted}")
        self.field = field
        self.value = value
        self.accepted = accepted


class InvalidOption(_InvalidValue):
    """An engine option that cannot work."""

    verdict = "is not usable"


class InvalidRequest(_InvalidValue):
    """A request the engine never sees."""

    verdict = "is not accepted"


class OutOfMemory(EngineError):
    """The KV memory asked for cannot be had; the message says what would fit."""


class EngineDead(EngineError):
    """The replica can no longer compute; every request in it ended with a retryable error."""
