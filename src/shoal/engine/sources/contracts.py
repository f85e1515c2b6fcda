"""What a source of models is, and what resolving a reference gives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from shoal.engine.errors import SourceError
from shoal.engine.sources.cache import Manifest, Stored
from shoal.engine.sources.progress import Progress

Kind = Literal["catalog", "directory", "gguf", "hub", "url"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model whose files are on this machine, complete."""

    reference: str
    """What was asked for."""
    name: str
    """What to call the model when serving it."""
    path: Path
    """A GGUF file, or a directory with a config.json and safetensors."""
    kind: Kind
    checksum: str | None
    """sha256 of the GGUF file, or of the directory's `sha256  path` lines. None: used in place, never hashed."""
    size_bytes: int


class Source(Protocol):
    """Somewhere a model can be fetched from."""

    @property
    def reference(self) -> str: ...
    @property
    def key(self) -> str:
        """Directory name in the cache: distinct for distinct references."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...

    def current(self, stored: Stored) -> bool:
        """Whether a stored copy is what `fetch` would bring now. May ask the network. Raises SourceError."""

    def fetch(
        self, staging: Path, previous: Stored | None, progress: Progress, *, offline: bool
    ) -> tuple[Path, Manifest]:
        """Bring the model into a directory below `staging`; returns it and the manifest to publish it with.

        Goes on with what an interrupted attempt left in `staging`. Files of `previous` that are still current may
        be reused. `offline`: only from what is on this machine. Raises SourceError.
        """


def offline_error(reference: str) -> SourceError:
    """What a source raises that cannot do without the network."""
    return SourceError(reference, "is not in the cache, and the network may not be used (offline)")
