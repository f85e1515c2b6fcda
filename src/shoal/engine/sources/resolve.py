"""From what a user typed to files on this machine."""

import os
import re
from pathlib import Path

from shoal.engine.errors import SourceError, did_you_mean
from shoal.engine.options import EngineOptions
from shoal.engine.sources.cache import ModelCache, Stored, cache_root
from shoal.engine.sources.catalog import DEFAULT_MODEL, catalog
from shoal.engine.sources.contracts import LocalModel, Source
from shoal.engine.sources.local import local_model
from shoal.engine.sources.progress import Progress, silent

HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<quantization>[\w.-]+))?(@(?P<revision>[\w./-]+))?")
PATH_LIKE = re.compile(r"^(/|\./|\.\./|~|\.$|\.\.$)|\.gguf$")
LOCK_DEADLINE_SECONDS = 3600.0


def resolve_model(
    reference: str = DEFAULT_MODEL,
    cache_dir: Path | None = None,
    offline: bool | None = None,
    progress: Progress = silent,
    *,
    refresh: bool = False,
    verify: bool = False,
    lock_deadline_s: float = LOCK_DEADLINE_SECONDS,
) -> LocalModel:
    """The files of a model, fetched first where the cache has no complete copy.

    `reference` is a catalog name, a directory, a GGUF file, a Hugging Face id (`org/name`, with `:Q4_K_M` to choose
    among GGUF files and `@revision`), or an fsspec URL. `offline` None reads SHOAL_OFFLINE and HF_HUB_OFFLINE.
    `refresh` asks the source whether the cached copy is still current; `verify` hashes every cached file.
    Raises SourceError.
    """
    source = _source(reference)
    if isinstance(source, LocalModel):
        return source
    offline = _offline_by_environment() if offline is None else offline
    cache = ModelCache(cache_root(cache_dir))
    return obtain(source, cache, offline, progress, refresh, verify, lock_deadline_s)


def model_of(options: EngineOptions) -> LocalModel:
    """Return the files of the model that a replica's options name. Raises SourceError."""
    cache_dir = Path(options.cache_dir) if options.cache_dir else None
    return resolve_model(options.model, cache_dir, offline=options.offline or None)


def obtain(
    source: Source,
    cache: ModelCache,
    offline: bool = False,
    progress: Progress = silent,
    refresh: bool = False,
    verify: bool = False,
    lock_deadline_s: float = LOCK_DEADLINE_SECONDS,
) -> LocalModel:
    """The model of a source, from the cache where that has a whole copy; see `resolve_model`."""
    stored, damage = _usable(cache, source, verify=verify, progress=progress)
    if stored and (offline or not refresh):
        return _local(source, stored)
    if offline and damage:
        raise SourceError(source.reference, damage)
    with cache.lock(source.key, source.reference, lock_deadline_s, progress) as staging:
        # Another process may have finished while we waited for the lock.
        stored, _ = _usable(cache, source, verify=verify and stored is None, progress=progress)
        if stored and (not refresh or source.current(stored)):
            return _local(source, stored)
        try:
            finished, manifest = source.fetch(staging, stored, progress, offline=offline)
            return _local(source, cache.publish(source.key, finished, manifest))
        except OSError as error:
            raise SourceError(source.reference, f"could not be written to {cache.root}: {error}") from error


def cached_models(cache_dir: Path | None = None) -> list[Stored]:
    """Everything complete in the cache."""
    return ModelCache(cache_root(cache_dir)).entries()


def _usable(
    cache: ModelCache, source: Source, *, verify: bool, progress: Progress
) -> tuple[Stored | None, str | None]:
    """The stored copy where it is whole, and otherwise what is wrong with it (None: there is none)."""
    stored = cache.load(source.key)
    if stored is None:
        return None, None
    damage = cache.damage(source.key, stored, full=verify, progress=progress)
    return (None, f"the cached copy is damaged: {damage}") if damage else (stored, None)


def _local(source: Source, stored: Stored) -> LocalModel:
    return LocalModel(
        reference=source.reference,
        name=source.name,
        path=stored.path,
        kind=source.kind,
        checksum=stored.checksum,
        size_bytes=stored.size_bytes,
    )


def _offline_by_environment() -> bool:
    values = (os.environ.get(name, "") for name in ("SHOAL_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.lower() in ("1", "true", "yes", "on") for value in values)


def _source(reference: str) -> Source | LocalModel:
    # Catalog names win over a directory of the same name, so that a name means the same wherever it is typed.
    known = catalog()
    if reference in known:
        from shoal.engine.sources.wheels import WheelSource

        return WheelSource(known[reference])
    if "://" in reference:
        from shoal.engine.sources.remote import UrlSource

        return UrlSource(reference)
    path = Path(reference).expanduser()
    if reference and (path.exists() or PATH_LIKE.search(reference)):
        return local_model(reference, path)
    if found := HUB_ID.fullmatch(reference):
        from shoal.engine.sources.hub import HubSource

        return HubSource(reference, found["repo"], found["revision"], found["quantization"])
    accepted = (
        f"accepted: a catalog name ({', '.join(known)}), a directory, a GGUF file, "
        "a Hugging Face id (org/name) or a URL (s3://…, file://…)"
    )
    hint = "; ".join(filter(None, [did_you_mean(reference, known), accepted]))
    raise SourceError(reference, "no catalog model, file or directory of this name", hint=hint)
