"""The model cache on disk: what is complete, who may write, how a finished download appears at once.

    <root>/<key>/manifest.json        written last: a directory without it is not a model
    <root>/.staging/<key>/            a download in progress; kept after a crash so that it can go on
    <root>/.locks/<key>.lock          held by the one process that downloads

A finished download is renamed into place, so a reader sees all of it or nothing.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.engine.errors import SourceError
from shoal.engine.sources.progress import Progress, Transferred, silent

CHUNK_BYTES = 4 << 20
MANIFEST = "manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    """One file of a model: `path` relative to the manifest's root, `size` in bytes."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    etag: str = ""
    """The source's own mark of this version of the file, where it has one."""


class Manifest(msgspec.Struct, frozen=True):
    """What a complete cache entry consists of."""

    reference: str
    main: str
    """The GGUF file, relative to the root; "." for a directory with a config.json."""
    files: tuple[FileRecord, ...]
    revision: str = ""
    root: str = ""
    """Where the files lie, when that is not the entry itself (the Hugging Face cache). Empty: the entry."""
    format: int = 1


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest together with where its files lie."""

    manifest: Manifest
    root: Path

    @property
    def path(self) -> Path:
        return self.root if self.manifest.main == "." else self.root / self.manifest.main

    @property
    def size_bytes(self) -> int:
        return sum(f.size for f in self.manifest.files)

    @property
    def checksum(self) -> str:
        """sha256 of the one file, or of the `sha256  path` lines of several (as `sha256sum` prints them)."""
        if len(self.manifest.files) == 1:
            return self.manifest.files[0].sha256
        if self.manifest.main != ".":
            return next(f.sha256 for f in self.manifest.files if f.path == self.manifest.main)
        lines = "".join(f"{f.sha256}  {f.path}\n" for f in self.manifest.files)
        return hashlib.sha256(lines.encode()).hexdigest()


def cache_root(cache_dir: Path | None = None) -> Path:
    """`cache_dir`, else `$SHOAL_HOME/models`, else `$XDG_CACHE_HOME/shoal/models`, else `~/.cache/shoal/models`."""
    if cache_dir is not None:
        return Path(cache_dir)
    if home := os.environ.get("SHOAL_HOME"):
        return Path(home).expanduser() / "models"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "shoal" / "models"


def sha256_of(path: Path, progress: Progress = silent) -> str:
    """The sha256 of a file, as hex."""
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(Transferred(f"checking {path.name}", done, total))
    return digest.hexdigest()


def record(root: Path, relative: str, sha256: str, etag: str = "") -> FileRecord:
    """The record of a finished file below `root`."""
    status = (root / relative).stat()
    return FileRecord(relative, status.st_size, status.st_mtime_ns, sha256, etag)


def fsync(path: Path) -> None:
    """Push a file's data, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_below(folder: Path) -> int:
    """Total size of the files below a directory that others may be changing meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def require_space(reference: str, folder: Path, needed_bytes: int) -> None:
    """Raise a SourceError where the file system of `folder` cannot hold `needed_bytes` more."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise SourceError(
            reference,
            f"needs {needed_bytes / 1e6:,.0f} MB, but {folder} has {free / 1e6:,.0f} MB free",
            hint="free some space or set SHOAL_HOME to a larger disk",
        )


class ModelCache:
    """The cache below one root directory. Safe to use from several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, key: str) -> Stored | None:
        """The complete entry of `key`; None where there is none. Touches only the manifest."""
        entry = self.root / key
        try:
            manifest = msgspec.json.decode((entry / MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError):
            return None
        if manifest.format != 1:
            return None
        return Stored(manifest, Path(manifest.root) if manifest.root else entry)

    def entries(self) -> list[Stored]:
        """All complete entries, by key."""
        if not self.root.is_dir():
            return []
        keys = sorted(p.name for p in self.root.iterdir() if not p.name.startswith("."))
        return [stored for key in keys if (stored := self.load(key))]

    def damage(self, key: str, stored: Stored, *, full: bool, progress: Progress = silent) -> str | None:
        """What is wrong with a stored entry, or None.

        Quick by default: sizes and times. A file whose time changed but not its size (a copied cache) is hashed
        once and its new time kept. `full` hashes every file.
        """
        fresh: list[FileRecord] = []
        for known in stored.manifest.files:
            path = stored.root / known.path
            try:
                status = path.stat()
            except OSError as error:
                return f"{path} cannot be read ({error.strerror})"
            if status.st_size != known.size:
                return f"{path} has {status.st_size} bytes instead of {known.size}"
            hashed = full or status.st_mtime_ns != known.mtime_ns
            if hashed and (found := sha256_of(path, progress)) != known.sha256:
                return f"{path} has sha256 {found} instead of {known.sha256}"
            fresh.append(msgspec.structs.replace(known, mtime_ns=status.st_mtime_ns))
        if tuple(fresh) != stored.manifest.files:
            # A cache shared read-only keeps its old times, which costs a checksum at each start.
            with contextlib.suppress(OSError):
                self._write_manifest(self.root / key, msgspec.structs.replace(stored.manifest, files=tuple(fresh)))
        return None

    @contextmanager
    def lock(self, key: str, reference: str, deadline_s: float, progress: Progress = silent) -> Iterator[Path]:
        """Hold the right to write `key`; yields its staging directory, which outlives a crash."""
        from filelock import FileLock, Timeout

        staging = self.root / ".staging" / key
        locks = self.root / ".locks"
        try:
            staging.mkdir(parents=True, exist_ok=True)
            locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(
                reference,
                f"the model cache {self.root} cannot be written ({error.strerror})",
                hint="set SHOAL_HOME",
            ) from None
        lock = FileLock(locks / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(Transferred("waiting for another process that pulls this model", 0, None))
            try:
                lock.acquire(timeout=deadline_s, poll_interval=0.1)
            except Timeout:
                raise SourceError(
                    reference, f"another process has been pulling it for over {deadline_s:.0f} s"
                ) from None
        try:
            # The former holder may have published and removed the directory while we waited.
            staging.mkdir(parents=True, exist_ok=True)
            yield staging
        finally:
            lock.release()

    def publish(self, key: str, finished: Path, manifest: Manifest) -> Stored:
        """Make the directory `finished` the entry of `key`. The caller holds the lock."""
        for path in sorted(finished.rglob("*")):
            fsync(path)
        self._write_manifest(finished, manifest)
        entry = self.root / key
        if entry.exists():
            # Readers that have the old files open or mapped keep them; new ones find nothing for an instant and
            # then wait for the lock.
            retired = self.root / ".staging" / f"{key}.retired"
            shutil.rmtree(retired, ignore_errors=True)
            entry.replace(retired)
            finished.replace(entry)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            finished.replace(entry)
        fsync(self.root)
        shutil.rmtree(self.root / ".staging" / key, ignore_errors=True)
        return Stored(manifest, Path(manifest.root) if manifest.root else entry)

    def _write_manifest(self, folder: Path, manifest: Manifest) -> None:
        partial = folder / f".{MANIFEST}.{os.getpid()}"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        fsync(partial)
        partial.replace(folder / MANIFEST)
        fsync(folder)
