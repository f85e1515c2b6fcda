"""The one error a model source raises: names the reference, the fault and what would be accepted."""

from collections.abc import Iterable

from shoal.engine.errors import EngineError
from shoal.specs.errors import near_names


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
