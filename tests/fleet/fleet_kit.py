"""Real fleets for tests: `shoal serve` as a process, its replicas as processes of its own, real sockets."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from e2ekit import eventually


@dataclass
class Stream:
    """A streamed completion as a client got it."""

    status: int
    text: str
    done: bool
    error: dict[str, Any] | None
    headers: httpx.Headers


class Served:
    """A running `shoal serve`."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, output: list[str], home: Path) -> None:
        self.process, self.url, self.output, self.home = process, url, output, home

    def view(self) -> dict[str, Any]:
        """What the dashboard shows."""
        return httpx.get(f"{self.url}/api/fleet", timeout=20, trust_env=False).json()

    def replica(self, name: str) -> dict[str, Any]:
        return next(r for r in self.view()["replicas"] if r["name"] == name)

    def states(self) -> list[str]:
        return [r["state"] for r in self.view()["replicas"]]

    def whole(self, count: int) -> bool:
        """Whether there are `count` replicas, all ready."""
        return self.states() == ["ready"] * count

    def pids(self) -> list[int]:
        return [r["pid"] for r in self.view()["replicas"] if r["pid"]]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=20, trust_env=False).text
        total = 0.0
        for line in text.splitlines():
            if re.match(rf"{name}[ {{]", line) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def complete(self, prompt: str, tokens: int, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return httpx.post(f"{self.url}/v1/completions", json=body | fields, timeout=300, trust_env=False)

    def stream(self, prompt: str, tokens: int, on_chunk: Any = None, **fields: Any) -> Stream:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = {"json": body | {"stream": True} | fields, "timeout": 300}
        text, done, error = "", False, None
        with (
            httpx.Client(base_url=self.url, trust_env=False, verify=False) as client,
            client.stream("POST", "/v1/completions", **request) as response,
        ):
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line[6:])
                    error = chunk.get("error", error)
                    text += "".join(choice["text"] for choice in chunk.get("choices", ()))
                    if on_chunk is not None:
                        on_chunk(response)
        return Stream(response.status_code, text, done, error, response.headers)

    def said(self) -> str:
        return "".join(self.output)


@contextlib.contextmanager
def fleet_process(
    *arguments: str, home: Path, until: str = "Ctrl-C stops", check: bool = True, seconds: float = 110
) -> Iterator[Served]:
    """`shoal serve ARGUMENTS` on a free port, ready. At the end it is told to stop and must leave no process."""
    command = [sys.executable, "-m", "shoal.cli", "serve", *arguments, "--port", "0"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
        "XDG_STATE_HOME": str(home),
        "SHOAL_LOG_LEVEL": "INFO",
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(process.stdout or ()), daemon=True)
    reader.start()
    served = Served(process, "", output, home)
    try:
        eventually(lambda: until in served.said() or process.poll() is not None, "the fleet is ready", seconds)
        assert process.poll() is None, served.said()
        found = re.search(r"https?://127\.0\.0\.1:\d+(?=/v1)", served.said())
        served.url = found.group(0) if found else ""
        yield served
    finally:
        children = []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(process.pid).children(recursive=True)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise
        finally:
            reader.join(10)
            if process.stdout is not None:
                process.stdout.close()
        if check:
            eventually(lambda: not any(alive(child) for child in children), "no replica outlives the fleet", 10)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
