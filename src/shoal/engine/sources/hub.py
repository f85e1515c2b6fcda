"""A model from the Hugging Face hub, through huggingface_hub and its cache.

The files stay in that cache, where other tools find them too; Shoal's own cache holds the manifest with their
checksums. After an interruption huggingface_hub goes on with the files that had not arrived whole.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.engine.errors import SourceError
from shoal.engine.sources.cache import (
    FileRecord,
    Manifest,
    Stored,
    bytes_below,
    fsync,
    record,
    require_space,
    sha256_of,
)
from shoal.engine.sources.contracts import Kind, offline_error
from shoal.engine.sources.local import require_weights
from shoal.engine.sources.progress import Progress, Transferred
from shoal.engine.sources.select import select_files

API_TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.2


class HubSource:
    """One repository at one revision. `quantization` chooses among several GGUF files."""

    kind: Kind = "hub"

    def __init__(self, reference: str, repo: str, revision: str | None, quantization: str | None) -> None:
        self.reference = reference
        self.repo = repo
        self.revision = revision or "main"
        self.quantization = quantization
        self.name = repo
        parts = ["hub", *repo.split("/"), self.revision.replace("/", "-"), quantization or ""]
        self.key = "--".join(p for p in parts if p)

    def current(self, stored: Stored) -> bool:
        """Whether the revision still points to the stored commit."""
        return bool(stored.manifest.revision == self._info().sha)

    def fetch(
        self, staging: Path, previous: Stored | None, progress: Progress, *, offline: bool
    ) -> tuple[Path, Manifest]:
        """See `Source.fetch`. Offline, a complete copy in huggingface_hub's cache is taken over."""
        if offline:
            return self._adopt(staging, progress)
        info = self._info()
        sizes = {f.rfilename: f.size or 0 for f in info.siblings or []}
        hashes = {f.rfilename: f.lfs.sha256 for f in info.siblings or [] if f.lfs}
        chosen = select_files(self.reference, sizes, self.quantization)
        # The hub's client trusts a file that is there; one that is damaged is removed here and fetched once more.
        for last in (False, True):
            folder = self._download(staging, {n: sizes[n] for n in chosen.names}, progress)
            if folder.name != info.sha:
                raise SourceError(self.reference, "changed on the hub while being fetched", hint="pull it again")
            records = self._hash(folder, chosen.names, progress)
            bad = [r for r in records if r.size != sizes[r.path] or r.sha256 != hashes.get(r.path, r.sha256)]
            if not bad:
                break
            for r in bad:
                (folder / r.path).resolve().unlink()
            if last:
                problem = f"{bad[0].path} arrived with sha256 {bad[0].sha256} instead of {hashes.get(bad[0].path)}"
                raise SourceError(self.reference, problem)
        return self._describe(staging, folder, chosen.main, records)

    def _download(self, staging: Path, sizes: dict[str, int], progress: Progress) -> Path:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.utils import tqdm

        class Quiet(tqdm):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **(options | {"disable": True}))

        blobs = Path(constants.HF_HUB_CACHE) / f"models--{self.repo.replace('/', '--')}" / "blobs"
        total = sum(sizes.values())
        blobs.mkdir(parents=True, exist_ok=True)
        require_space(self.reference, blobs, max(0, total - bytes_below(blobs)))
        with self._errors(), _reporting(blobs, f"fetching {self.repo}", total, progress):
            return Path(
                snapshot_download(
                    self.repo,
                    revision=self.revision,
                    allow_patterns=sorted(sizes),
                    tqdm_class=Quiet,
                    endpoint=constants.ENDPOINT,
                )
            )

    def _adopt(self, staging: Path, progress: Progress) -> tuple[Path, Manifest]:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        from shoal.engine.sources.select import COMPANIONS

        wanted = ["*.gguf"] if self.quantization else [*COMPANIONS, "*.safetensors"]
        try:
            folder = Path(
                snapshot_download(self.repo, revision=self.revision, allow_patterns=wanted, local_files_only=True)
            )
        except LocalEntryNotFoundError:
            raise offline_error(self.reference) from None
        chosen = select_files(self.reference, [p.name for p in folder.iterdir()], self.quantization)
        if chosen.main == ".":
            require_weights(self.reference, folder)
        return self._describe(staging, folder, chosen.main, self._hash(folder, chosen.names, progress))

    def _hash(self, folder: Path, names: tuple[str, ...], progress: Progress) -> tuple[FileRecord, ...]:
        for name in names:
            fsync(folder / name)
        return tuple(record(folder, name, sha256_of(folder / name, progress)) for name in names)

    def _describe(
        self, staging: Path, folder: Path, main: str, records: tuple[FileRecord, ...]
    ) -> tuple[Path, Manifest]:
        """An entry that holds only the manifest: the files stay where they are."""
        finished = staging / "finished"
        shutil.rmtree(finished, ignore_errors=True)
        finished.mkdir()
        return finished, Manifest(self.reference, main, records, revision=folder.name, root=str(folder))

    def _info(self) -> Any:
        from huggingface_hub import HfApi, constants

        with self._errors():
            return HfApi(endpoint=constants.ENDPOINT).model_info(
                self.repo, revision=self.revision, files_metadata=True, timeout=API_TIMEOUT_SECONDS
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say in a SourceError what the hub's client says in its own many."""
        from huggingface_hub import constants, errors

        page = f"{constants.ENDPOINT}/{self.repo}"
        try:
            yield
        except errors.GatedRepoError as error:
            hint = f"accept its terms at {page}, then set HF_TOKEN or run hf auth login"
            raise SourceError(self.reference, "is gated on the hub", hint=hint) from error
        except errors.RevisionNotFoundError as error:
            raise SourceError(self.reference, f"has no revision {self.revision!r} at {page}") from error
        except errors.RepositoryNotFoundError as error:
            hint = "check the name; for a private model set HF_TOKEN or run hf auth login"
            raise SourceError(self.reference, f"there is no model {page}", hint=hint) from error
        except errors.HFValidationError as error:
            raise SourceError(self.reference, str(error)) from error
        except errors.HfHubHTTPError as error:
            raise SourceError(self.reference, f"the hub at {constants.ENDPOINT} answered: {error}") from error
        except (OSError, SourceError):
            raise
        except Exception as error:  # the client's transport library, which changes between its versions
            problem = f"the hub at {constants.ENDPOINT} cannot be reached ({type(error).__name__}: {error})"
            hint = "check the network or HF_ENDPOINT, or pass a local directory or GGUF file"
            raise SourceError(self.reference, problem, hint=hint) from error


@contextmanager
def _reporting(blobs: Path, label: str, total: int, progress: Progress) -> Iterator[None]:
    """Report the growth of the blob directory from a thread while the body downloads into it."""
    start, ended = bytes_below(blobs), threading.Event()

    def report() -> None:
        while not ended.wait(POLL_SECONDS):
            progress(Transferred(label, min(total, bytes_below(blobs) - start), total))

    thread = threading.Thread(target=report, daemon=True, name="shoal-pull-progress")
    thread.start()
    try:
        yield
        progress(Transferred(label, total, total))
    finally:
        ended.set()
        thread.join(timeout=5)
