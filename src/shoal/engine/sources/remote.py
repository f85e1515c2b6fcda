"""A model from an fsspec URL: one GGUF file, or a directory with a config.json and safetensors.

Every URL is copied into the cache, `file://` too (a mounted share is one); a plain path is used in place instead.
"""

import hashlib
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

import msgspec

from shoal.engine.errors import SourceError
from shoal.engine.sources.cache import CHUNK_BYTES, FileRecord, Manifest, Stored, record, require_space
from shoal.engine.sources.contracts import Kind, offline_error
from shoal.engine.sources.progress import Progress, Transferred
from shoal.engine.sources.select import select_files

PARALLEL_FILES = 4
# A dead store must end in an error: botocore's own defaults wait a minute and try again several times.
S3_CLIENT = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 4}}
VERSION_FIELDS = (
    "ETag",
    "etag",
    "md5Hash",
    "md5",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)


class RemoteFile(msgspec.Struct, frozen=True):
    """One file as the store describes it; `size` in bytes."""

    url: str
    name: str
    size: int
    version: str
    """Changes when the file does."""


class UrlSource:
    """One URL. Its credentials and endpoint come from fsspec's own configuration and environment variables."""

    kind: Kind = "url"

    def __init__(self, reference: str) -> None:
        self.reference = reference
        stripped = reference.rstrip("/")
        stem = PurePosixPath(stripped.split("://", 1)[1]).name
        self.name = stem.removesuffix(".gguf")
        slug = re.sub(r"[^\w.-]+", "-", stem)[:60]
        self.key = f"url--{slug}--{hashlib.sha256(stripped.encode()).hexdigest()[:12]}"

    def current(self, stored: Stored) -> bool:
        """Whether the store still describes the same files."""
        remote = {f.name: f.version for f in self._list(self._open())[1]}
        return remote == {f.path: f.etag for f in stored.manifest.files}

    def fetch(
        self, staging: Path, previous: Stored | None, progress: Progress, *, offline: bool
    ) -> tuple[Path, Manifest]:
        """See `Source.fetch`. A file goes on from its last byte where the store still has the same version."""
        if offline:
            raise offline_error(self.reference)
        filesystem = self._open()
        main, files = self._list(filesystem)
        finished = staging / "finished"
        finished.mkdir(exist_ok=True)
        names = {f.name for f in files}
        for stale in finished.iterdir():
            if stale.name.removesuffix(".partial").removesuffix(".version") not in names:
                stale.unlink()
        old = {f.path: f for f in previous.manifest.files} if previous else {}
        have = sum(p.stat().st_size for p in finished.iterdir())
        require_space(self.reference, staging, max(0, sum(f.size for f in files) - have))
        stop = Event()

        def one(file: RemoteFile) -> FileRecord:
            known = old.get(file.name)
            if previous and known and known.etag == file.version:
                _link_or_copy(previous.root / known.path, finished / file.name)
                return known
            return self._fetch_file(filesystem, file, finished, progress, stop)

        pool = ThreadPoolExecutor(PARALLEL_FILES)
        try:
            records = list(pool.map(one, files))
        except BaseException as error:
            stop.set()
            # Ctrl-C must not wait for a store that is silent; the threads write nothing more once `stop` is set.
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise
        pool.shutdown()
        for leftover in finished.glob("*.version"):
            leftover.unlink()
        return finished, Manifest(self.reference, main, tuple(records))

    def _open(self) -> Any:
        import fsspec

        scheme = self.reference.split("://", 1)[0]
        options: dict[str, Any] = {"config_kwargs": S3_CLIENT} if scheme in ("s3", "s3a") else {}
        try:
            # Listings of an earlier pull in this process would hide what changed since.
            return fsspec.filesystem(scheme, use_listings_cache=False, **options)
        except ImportError as error:
            hint = "pip install 'shoal[s3]'" if options else f"install the package fsspec needs for {scheme}://"
            raise SourceError(self.reference, f"{scheme}:// needs a package: {error}", hint=hint) from error
        except ValueError as error:
            hint = "accepted: s3://, file:// and what else fsspec knows"
            raise SourceError(self.reference, str(error), hint=hint) from error

    def _list(self, filesystem: Any) -> tuple[str, list[RemoteFile]]:
        """The main file and all files to fetch."""
        path = filesystem._strip_protocol(self.reference).rstrip("/")
        try:
            info = filesystem.info(path)
            if info["type"] == "file":
                if not path.endswith(".gguf"):
                    raise SourceError(
                        self.reference, "is a file but not *.gguf", hint="accepted: a GGUF file or a directory"
                    )
                file = _remote_file(info, path)
                return file.name, [file]
            paths = [i["name"] for i in filesystem.ls(path, detail=True) if i["type"] == "file"]
            by_name = {PurePosixPath(p).name: p for p in paths}
            chosen = select_files(self.reference, by_name)
            # A listing and a single look-up may spell a version differently: always ask for the latter.
            return chosen.main, [_remote_file(filesystem.info(by_name[n]), by_name[n]) for n in chosen.names]
        except FileNotFoundError as error:
            # Some stores say so of a host that does not answer, too; their own words are in the cause.
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            raise SourceError(self.reference, f"does not exist{cause}") from error
        except SourceError:
            raise
        except Exception as error:  # each store has its own errors; none of them may reach a user as a traceback
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> SourceError:
        problem = f"cannot be read ({type(error).__name__}: {error})"
        return SourceError(self.reference, problem, hint="check the address, the credentials and the network")

    def _fetch_file(
        self, filesystem: Any, file: RemoteFile, folder: Path, progress: Progress, stop: Event
    ) -> FileRecord:
        target, partial, version = (folder / f"{file.name}{end}" for end in ("", ".partial", ".version"))
        same = version.is_file() and version.read_text() == json.dumps([file.version, file.size])
        if not same:
            target.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)
            version.write_text(json.dumps([file.version, file.size]))
        elif target.is_file():
            target.replace(partial)
        digest = hashlib.sha256()
        done = _hash_prefix(partial, digest, file.size)
        label = f"fetching {file.name}"
        try:
            # Unbuffered: each read is one ranged request, and all that has arrived is on disk.
            with (
                partial.open("r+b" if partial.exists() else "wb") as out,
                filesystem.open(file.url, "rb", block_size=CHUNK_BYTES, cache_type="none") as source,
            ):
                out.seek(done)
                out.truncate()
                source.seek(done)
                while done < file.size and (chunk := source.read(CHUNK_BYTES)) and not stop.is_set():
                    out.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    progress(Transferred(label, done, file.size))
            after = _remote_file(filesystem.info(file.url), file.url)
        except Exception as error:
            raise self._unreachable(error) from error
        if after.version != file.version:
            raise SourceError(
                self.reference, f"{file.name} changed while it was being fetched", hint="pull it again"
            )
        if done != file.size:
            raise SourceError(self.reference, f"{file.name} ended after {done} of {file.size} bytes")
        partial.replace(target)
        return record(folder, file.name, digest.hexdigest(), file.version)


def _remote_file(info: dict[str, Any], path: str) -> RemoteFile:
    version = next((f"{f}={info[f]}" for f in VERSION_FIELDS if info.get(f)), "")
    return RemoteFile(path, PurePosixPath(path).name, int(info["size"]), version)


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _hash_prefix(partial: Path, digest: "hashlib._Hash", limit: int) -> int:
    """Feed what an earlier attempt left into the digest; returns its length, 0 where it is not a prefix."""
    if not partial.is_file() or partial.stat().st_size > limit:
        return 0
    done = 0
    with partial.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
    return done
