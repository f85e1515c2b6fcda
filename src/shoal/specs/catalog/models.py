"""The catalogue of models: names, the config fields they are built from, and checkpoints stored otherwise."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from shoal.specs.catalog.entries import Entry, Source, read_file
from shoal.specs.errors import UnknownModel
from shoal.specs.model import ModelSpec
from shoal.specs.parse import parse_config

_SHIPPED = Path(__file__).with_name("models.yaml")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model, or one checkpoint of it, as the catalogue has it."""

    name: str
    """The catalogue's own name of the model, whichever checkpoint this is."""
    ids: tuple[str, ...]
    """Hugging Face names; the first is the one to show."""
    aliases: tuple[str, ...]
    config: Mapping[str, object]
    source: Source
    note: str = ""
    is_checkpoint: bool = False
    """Stored otherwise than the model's own weights; known by its id only."""

    @property
    def names(self) -> tuple[str, ...]:
        """Everything it is called."""
        return self.ids if self.is_checkpoint else (self.name, *self.aliases, *self.ids)


def catalog_model(name: str, extra: Sequence[Path | str] = ()) -> ModelSpec:
    """The model of this name, alias or Hugging Face id, whatever the case.

    Args:
        name: `llama-3.1-70b`, `nvidia/DeepSeek-R1-NVFP4`, …; a quantized checkpoint's spec says how it is stored.
        extra: a user's own catalogue files, later ones over earlier ones.

    Raises:
        UnknownModel: with the near names.
        SpecError: a file, entry or field that can't be used, by name.
    """
    entry = catalog_entry(name, extra)
    # Called as the user called it, where that is a Hugging Face name.
    shown = next((known for known in entry.ids if _fold(known) == _fold(name)), entry.name)
    return _spec(shown, tuple(str(path) for path in extra))


def catalog_entry(name: str, extra: Sequence[Path | str] = ()) -> ModelEntry:
    """The entry itself: config fields and where they are from. Raises as `catalog_model`."""
    entries = _all(tuple(str(path) for path in extra))
    entry = entries.get(_fold(name))
    if entry is None:
        raise UnknownModel(name, sorted({known for each in entries.values() for known in each.names}))
    return entry


def known_models(extra: Sequence[Path | str] = ()) -> tuple[str, ...]:
    """Every model's own name, and the ids of the checkpoints stored otherwise."""
    entries = _all(tuple(str(path) for path in extra)).values()
    return tuple(sorted({entry.ids[0] if entry.is_checkpoint else entry.name for entry in entries}))


_SPEC_FIELDS = ("ids", "aliases", "config", "checkpoints", "from", "source", "date", "class", "note")


@functools.lru_cache(maxsize=256)
def _spec(name: str, extra: tuple[str, ...]) -> ModelSpec:
    return parse_config(_all(extra)[_fold(name)].config, name)


@functools.lru_cache(maxsize=16)
def _all(extra: tuple[str, ...]) -> Mapping[str, ModelEntry]:
    found: dict[str, ModelEntry] = {}
    for path in (_SHIPPED, *(Path(item) for item in extra)):
        label = path.name if path == _SHIPPED else str(path)
        for entry in _read(read_file(path, label)):
            found.update((_fold(name), entry) for name in entry.names)
    return MappingProxyType(found)


def _read(root: Entry) -> Iterator[ModelEntry]:
    models = root.section("models")
    for name in models.values if models is not None else ():
        assert models is not None
        entry = models.required_section(name)
        entry.only(*_SPEC_FIELDS)
        model = _model(name, entry)
        yield model
        checkpoints = entry.section("checkpoints")
        for identifier in checkpoints.values if checkpoints is not None else ():
            assert checkpoints is not None
            yield _checkpoint(model, identifier, checkpoints.required_section(identifier))


def _model(name: str, entry: Entry) -> ModelEntry:
    return ModelEntry(
        name=name,
        ids=entry.words("ids"),
        aliases=entry.words("aliases"),
        config=entry.required_section("config").values,
        source=entry.provenance(),
        note=entry.text("note") if "note" in entry.values else "",
    )


def _checkpoint(model: ModelEntry, identifier: str, entry: Entry) -> ModelEntry:
    entry.only("from", "source", "date", "class", "quantization_config")
    config = {**model.config, "quantization_config": entry.required_section("quantization_config").values}
    source = entry.provenance()
    return replace(model, ids=(identifier,), aliases=(), config=config, source=source, is_checkpoint=True)


def _fold(name: str) -> str:
    return name.lower().replace("_", "-").strip()
