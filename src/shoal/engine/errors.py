"""Errors of one replica: each names what was wrong and what would be accepted. No traceback reaches a user."""


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class InvalidOption(EngineError, ValueError):
    """An engine option that cannot work: field, value, what is accepted."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field}={value!r} is not usable: expected {accepted}")
        self.field = field
        self.value = value
        self.accepted = accepted


class InvalidRequest(EngineError, ValueError):
    """A request the engine never sees: field, value, what is accepted."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field}={value!r} is not accepted: expected {accepted}")
        self.field = field
        self.value = value
        self.accepted = accepted


class OutOfMemory(EngineError):
    """The KV memory asked for cannot be had; the message says what would fit."""


class EngineDead(EngineError):
    """The replica can no longer compute; every request in it ended with a retryable error."""
