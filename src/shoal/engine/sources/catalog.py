"""The short names: which wheels on PyPI carry a model's GGUF file, and the checksums it must have."""

from importlib.resources import files

import msgspec
import yaml

DEFAULT_MODEL = "smollm2-135m"


class Wheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wheel of a catalog model. `size` in bytes; `parts` are members that, joined, make up the GGUF file."""

    project: str
    version: str
    filename: str
    size: int
    sha256: str
    parts: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """Licence members, unpacked next to the model."""


class CatalogModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model with a short name. `size` (bytes) and `sha256` are those of the finished GGUF file."""

    name: str
    summary: str
    licence: str
    origin: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]


class _CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[CatalogModel, ...]


def catalog() -> dict[str, CatalogModel]:
    """All catalog models by name, in the file's order."""
    text = files(__package__).joinpath("catalog.yaml").read_text(encoding="utf-8")
    parsed = msgspec.convert(yaml.safe_load(text), _CatalogFile)
    return {model.name: model for model in parsed.models}
