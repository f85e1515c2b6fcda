"""A model that is already on this machine: a directory or a GGUF file, used where it lies."""

import json
from collections.abc import Sequence
from pathlib import Path

from shoal.engine.errors import SourceError, did_you_mean
from shoal.engine.sources.contracts import LocalModel
from shoal.engine.sources.select import gguf_files
from shoal.specs.errors import UnreadableModel
from shoal.specs.gguf_header import SHARD, shard_paths

GGUF_MAGIC = b"GGUF"
DIRECTORY_FORM = "a model directory holds config.json and *.safetensors, or one GGUF file"


def local_model(reference: str, path: Path) -> LocalModel:
    """Check that `path` is something the engine can open. Raises SourceError."""
    if not path.exists():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = did_you_mean(path.name, siblings)
        raise SourceError(reference, f"{path} does not exist", hint=near)
    path = path.resolve()
    if path.is_file():
        return _gguf(reference, path)
    ggufs = _first_shards(gguf_files(p.name for p in path.iterdir() if p.is_file()))
    if (path / "config.json").is_file() and (not ggufs or any(path.glob("*.safetensors*"))):
        require_weights(reference, path)
        files = [p for p in path.iterdir() if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        return LocalModel(reference, path.name, path, "directory", None, size)
    if len(ggufs) == 1:
        return _gguf(reference, path / ggufs[0])
    if ggufs:
        names = ", ".join(ggufs)
        raise SourceError(reference, f"holds several GGUF files ({names})", hint="name one of them")
    raise SourceError(reference, f"{path} holds no model", hint=DIRECTORY_FORM)


def _first_shards(names: Sequence[str]) -> list[str]:
    """One file name per GGUF model: of one that is split, the first."""
    models: dict[str, str] = {}
    for name in names:
        models.setdefault(SHARD.sub("", name), name)
    return list(models.values())


def _gguf(reference: str, path: Path) -> LocalModel:
    try:
        paths = shard_paths(path)
    except UnreadableModel as error:
        raise SourceError(reference, str(error)) from None
    path = paths[0]
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise SourceError(reference, f"{path} is not a GGUF file (it begins with {magic!r})", hint=DIRECTORY_FORM)
    size = sum(p.stat().st_size for p in paths)
    return LocalModel(reference, SHARD.sub("", path.name).removesuffix(".gguf"), path, "gguf", None, size)


def require_weights(reference: str, folder: Path) -> None:
    """Raise a SourceError where the safetensors files of a directory are absent or some shards are missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            raise SourceError(reference, f"{index} is not a safetensors index (no weight_map)") from None
        missing = sorted(s for s in shards if not (folder / s).is_file())
        if missing:
            raise SourceError(reference, f"{len(missing)} of {len(shards)} shards are missing, first {missing[0]}")
    elif not any(folder.glob("*.safetensors")):
        raise SourceError(reference, f"{folder} has a config.json but no *.safetensors", hint=DIRECTORY_FORM)
