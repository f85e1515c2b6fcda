"""Where models come from: catalog, directory, GGUF, hub, object store; checksummed and atomic."""

from shoal.engine.errors import SourceError
from shoal.engine.sources.catalog import DEFAULT_MODEL, catalog
from shoal.engine.sources.contracts import LocalModel
from shoal.engine.sources.progress import Progress, Transferred, progress_bars
from shoal.engine.sources.resolve import cached_models, model_of, resolve_model

__all__ = [
    "DEFAULT_MODEL",
    "LocalModel",
    "Progress",
    "SourceError",
    "Transferred",
    "cached_models",
    "catalog",
    "model_of",
    "progress_bars",
    "resolve_model",
]
