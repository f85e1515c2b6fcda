"""A fleet as users start it, `shoal serve --config`, whose router or door can be changed between measurements."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peers.engines import Absent, free_port, stop, wait_for

START_SECONDS = 300.0
CHANGE_SECONDS = 30.0


class Fleet:
    """A running fleet. `change` gives it another section of its configuration, as SIGHUP does for everybody."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        self._config = dict(config)
        self._path = folder / "fleet.yaml"
        self.log = folder / "fleet.log"
        self._write()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "shoal.cli", "serve", "--config", str(self._path), "--port", str(port)]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": str(folder),
            "SHOAL_LOG_LEVEL": "INFO",
            "PYTHONUNBUFFERED": "1",
        }
        with self.log.open("w") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    def _write(self) -> None:
        # YAML holds JSON. Renamed, so that nobody reads half of it.
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._config))
        partial.rename(self._path)

    def wait(self) -> None:
        """Until every replica has generated a token; `Absent` if one doesn't."""
        wanted = sum(pool.get("replicas", 1) for pool in self._config["pools"])
        wait_for(f"{self.url}/ready", self._process, START_SECONDS, self.log)
        deadline = time.monotonic() + START_SECONDS
        while self.states() != ["ready"] * wanted:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise Absent(f"the replicas are {', '.join(self.states())}; see {self.log}")
            time.sleep(0.1)

    def view(self) -> dict[str, Any]:
        """What its dashboard shows."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/api/fleet", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def states(self) -> list[str]:
        return [replica["state"] for replica in self.view()["replicas"]]

    def pids(self) -> list[int]:
        """Processes of the replicas."""
        return [replica["pid"] for replica in self.view()["replicas"]]

    def change(self, section: str, value: Mapping[str, Any]) -> None:
        """Replace a section (`router`, `admission`, …); returns when the fleet serves by it."""
        before = self._reloads()
        self._config[section] = dict(value)
        self._write()
        os.kill(self._process.pid, signal.SIGHUP)
        deadline = time.monotonic() + CHANGE_SECONDS
        while self._reloads() == before:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise Absent(f"the fleet did not take its new {section}; see {self.log}")
            time.sleep(0.02)

    def _reloads(self) -> int:
        text = self.log.read_text(errors="replace")
        if "the configuration stays as it is" in text:
            raise Absent(f"the fleet refused its configuration; see {self.log}")
        return text.count("reload: ")

    def close(self) -> None:
        stop(self._process)


@contextlib.contextmanager
def fleet(config: Mapping[str, Any], folder: Path) -> Iterator[Fleet]:
    """A fleet whose replicas are all ready; nothing is left of it afterwards."""
    running = Fleet(config, folder)
    try:
        running.wait()
        yield running
    finally:
        running.close()


def small_pool(model: str, replicas: int, blocks: int, quantize: str | None = None) -> dict[str, Any]:
    """Replicas of our engine on one thread each, with room for `blocks` blocks of 16 tokens of KV."""
    return {
        "name": "pool",
        "model": model,
        "served_name": "model",
        "replicas": replicas,
        "threads": 1,
        "kv_events": True,
        "options": {
            "num_blocks": blocks,
            "max_model_len": 2048,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 256,
            **({"quantize": quantize} if quantize else {}),
        },
        "environment": {"OMP_NUM_THREADS": "1"},
    }
