"""The error of weights that can't be used."""

from pathlib import Path

from shoal.engine.errors import EngineError


class WeightsError(EngineError):
    """A weight file or tensor that can't be used: says which, what was found and what was expected."""

    def __init__(self, message: str, *, file: Path | None = None, tensor: str | None = None) -> None:
        where = [str(file)] if file else []
        if tensor:
            where.append(f"tensor {tensor}")
        super().__init__(": ".join([*where, message]))
        self.file = file
        self.tensor = tensor
