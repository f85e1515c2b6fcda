"""What an engine is given as the model: a hub name, or a directory or file with weights; never a bare config."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.plan.question import Question
from shoal.specs.catalog.models import catalog_entry
from shoal.specs.errors import UnknownModel

_WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin", "model.safetensors.index.json")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The published weights of a model."""

    name: str
    """To show: hub name, or the model's own."""
    reference: str | None
    """Hub name or path that an engine loads; None: only a config of it is known."""
    given: str | None = None
    """What the user said to serve, if anything."""

    @property
    def is_local(self) -> bool:
        """It lies in a directory of this machine."""
        return self.reference is not None and not _HUB_NAME.fullmatch(self.reference)


def checkpoint_of(question: Question, model: str | None, serve: str | None = None) -> Checkpoint:
    """The checkpoint of a question's model.

    Args:
        model: the model as the question named it: a catalogued name, a hub name, or a path.
        serve: what the user says to load instead.
    """
    if serve is not None:
        return Checkpoint(serve, serve, serve)
    path = Path(model) if model is not None else None
    if path is not None and path.exists():
        return _of_path(path, question.model.name)
    found = _catalogued(model) or _catalogued(question.model.name)
    if found is not None:
        return Checkpoint(found, found)
    for name in (model, question.model.name):
        if name is not None and _HUB_NAME.fullmatch(name):
            return Checkpoint(name, name)
    return Checkpoint(question.model.name, None)


def _catalogued(name: str | None) -> str | None:
    """A catalogued model's hub name: the one asked for, else its first."""
    if not name:
        return None
    try:
        entry = catalog_entry(name)
    except UnknownModel:
        return None
    return next((known for known in entry.ids if known.lower() == name.lower()), entry.ids[0])


def _of_path(path: Path, name: str) -> Checkpoint:
    """A directory with weights, or a GGUF file, as it is; a bare config by the hub name that it says itself."""
    if path.suffix == ".gguf":
        return Checkpoint(name, str(path.resolve()))
    folder = path if path.is_dir() else path.parent
    if any(next(folder.glob(pattern), None) is not None for pattern in _WEIGHTS):
        return Checkpoint(name, str(folder.resolve()))
    origin = _origin(folder / "config.json" if path.is_dir() else path)
    return Checkpoint(origin or name, origin)


def _origin(config: Path) -> str | None:
    try:
        said = json.loads(config.read_text(encoding="utf-8")).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return said if isinstance(said, str) and _HUB_NAME.fullmatch(said) else None
