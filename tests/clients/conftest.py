"""One replica of the real model, as its users start it, for all client stacks."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

READY_SECONDS = 120.0


@pytest.fixture(scope="session")
def endpoint(smollm2_path: Path) -> Iterator[str]:
    """The URL of `shoal serve`, without `/v1`. It logs no request and ends with the session."""
    command = [sys.executable, "-m", "shoal.cli", "serve", str(smollm2_path), "--served-name", "smollm2"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--max-model-len", "4096"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    # A server that says nothing is ended, so that reading its output ends too.
    watchdog = threading.Timer(READY_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"Ready +(http://\S+)/v1", line):
                break
        else:
            pytest.fail(f"shoal serve did not get ready: {''.join(said)}")
        watchdog.cancel()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield found[1]
    finally:
        watchdog.cancel()
        process.terminate()
        assert process.wait(30) == 0
