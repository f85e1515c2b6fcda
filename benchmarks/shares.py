"""A share of the processor for each replica, so that several on one machine are like as many machines.

Replicas that share cores take one another's time: a burst on one slows all, and spreading load gains nothing. With
a quota (Linux cgroups, as root) each has so much of a core and no more, whatever the others do.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from peers.engines import Absent

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
"""Short beside a step: a replica that used up its quota waits until the period ends."""


def _group(name: str, cores: float) -> Path:
    """A new group limited to so many cores; `Absent` where this user can't make one."""
    quota = round(cores * _PERIOD_US)
    first = (_ROOT / "cpu").is_dir()
    folder = (_ROOT / "cpu" if first else _ROOT) / name
    try:
        folder.mkdir()
        if first:
            (folder / "cpu.cfs_period_us").write_text(f"{_PERIOD_US}")
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}")
        else:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise Absent(f"no processor shares: {error} (needs root and the cpu controller of cgroups)") from None
    return folder


@contextlib.contextmanager
def shares(pids: Iterable[int], cores: float) -> Iterator[None]:
    """Each process, with its children, has `cores` cores at most, until the block ends."""
    made: list[Path] = []
    try:
        for pid in pids:
            folder = _group(f"shoal-bench-{os.getpid()}-{pid}", cores)
            made.append(folder)
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                (folder / "cgroup.procs").write_text(f"{member.pid}")
        yield
    finally:
        for folder in made:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Its processes go back to the group above, then it goes."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (folder.parent / "cgroup.procs").write_text(pid)
            folder.rmdir()
            return
        time.sleep(0.1)
