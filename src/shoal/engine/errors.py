"""Errors of one replica: each names what was wrong and what would be accepted. No traceback reaches a user."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from shoal.specs.errors import near_names


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


class TextError(EngineError):
    """Root of the package's errors; the message is fit for a user."""


class TokenizerError(TextError):
    """A tokenizer cannot be read, or is of a kind this package does not decode."""


class ChatTemplateError(TextError):
    """The model has no chat template, or its template refuses these messages."""


class WeightsError(EngineError):
    """A weight file or tensor that can't be used: says which, what was found and what was expected."""

    def __init__(self, message: str, *, file: Path | None = None, tensor: str | None = None) -> None:
        where = [str(file)] if file else []
        if tensor:
            where.append(f"tensor {tensor}")
        super().__init__(": ".join([*where, message]))
        self.file = file
        self.tensor = tensor


class InvalidParameter(ValueError):
    """A request parameter out of its range: names the field, the value, and what would be accepted."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"Invalid value for '{field}': {shown}. Expected {accepted}.")


class SourceError(EngineError):
    """A model could not be found, fetched or trusted.

    `reference` is what the caller asked for. `str()` is one line fit to be shown to a user.
    """

    def __init__(self, reference: str, problem: str, *, hint: str = "") -> None:
        self.reference = reference
        self.problem = problem
        self.hint = hint
        super().__init__(f"model {reference!r}: {problem}" + (f"; {hint}" if hint else ""))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'?`, or an empty string where nothing known is near."""
    near = near_names(name, known, limit=2)
    return f"did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
