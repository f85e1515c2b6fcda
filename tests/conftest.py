"""Fixtures every test may use: the real models, the measured data, and a check that nothing is left behind."""

import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

# Read by torch when it is first imported; worker processes inherit it and share the machine's few cores.
os.environ.setdefault("OMP_NUM_THREADS", "2")

# A shell that starts the suite in the background ignores SIGINT, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LEAK_DEADLINE_SECONDS = 5.0
SHARED_MEMORY = Path("/dev/shm")


def _cached_model(name: str) -> Path:
    from shoal.engine.sources import SourceError, resolve_model

    try:
        return resolve_model(name, offline=True).path
    except SourceError as error:
        pytest.skip(f"{error}: run `shoal pull {name}` (make test does)")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return _cached_model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The GGUF file of Gemma 3 270M."""
    return _cached_model("gemma3-270m")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Measurements and model configs that lie beside the checkout; too large, and not ours, to be in it."""
    folder = Path(__file__).parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a browser where there is none: `make test` runs everything that can run here."""
    browsers = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if any(shutil.which(name) for name in browsers) and importlib.util.find_spec("playwright"):
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason="needs Chromium and the playwright package"))


def _held() -> dict[str, set[str]]:
    """What this process holds that a test could forget: by kind, named so that a failure says what leaked."""
    me = psutil.Process()
    children = {f"{p.pid} {' '.join(_command(p))}" for p in me.children(recursive=True)}
    sockets = {f"{c.laddr}->{c.raddr} {c.status}" for c in me.net_connections(kind="all") if c.laddr or c.raddr}
    segments = {p.name for p in SHARED_MEMORY.glob("shoal*")} if SHARED_MEMORY.is_dir() else set()
    return {"child processes": children, "sockets": sockets, "shared memory segments": segments}


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return ["gone"]


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail the test if it leaves processes, sockets, shared memory or file descriptors behind.

    Request it *before* fixtures that start something, so that it is torn down after them. What is being closed gets
    a few seconds: sockets and children end asynchronously.
    """
    # Python starts this helper process at the first shared-memory segment and keeps it: not the test's.
    resource_tracker.ensure_running()
    gc.collect()
    before, files_before = _held(), psutil.Process().num_fds()
    yield
    deadline = time.monotonic() + LEAK_DEADLINE_SECONDS
    while True:
        gc.collect()
        after, files_after = _held(), psutil.Process().num_fds()
        left = {kind: names for kind, held in after.items() if (names := held - before[kind])}
        if not left and files_after <= files_before:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not left, f"left behind: {left}"
    assert files_after <= files_before, f"{files_after - files_before} file descriptors left open"
