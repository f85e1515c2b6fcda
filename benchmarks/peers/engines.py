"""Start, ask and stop engines, and say why one is absent."""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

HERE = Path(__file__).parent
LOAD_SECONDS = 600.0
ANSWER_SECONDS = 900.0
Kind = Literal[
    "shoal",
    "shoal-int8",
    "shoal-int4",
    "vllm",
    "vllm-bf16",
    "vllm-int8",
    "transformers",
    "llamacpp",
    "llamacpp-q8_0",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
WEIGHTS: Mapping[Kind, str] = {
    "shoal": "fp32",
    "shoal-int8": "int8, KV int8",
    "shoal-int4": "int4, KV int8",
    "vllm": "fp32 eager",
    "vllm-bf16": "bf16 compiled",
    "vllm-int8": "W8A8, fp32 eager",
    "transformers": "fp32",
    "llamacpp": "as in the GGUF",
    "llamacpp-q8_0": "Q8_0",
}


def program(kind: Kind) -> str:
    """The engine of a kind, whatever its weights."""
    return kind.split("-")[0]


def scheme(kind: Kind) -> str | None:
    """What Shoal's weights are rounded to on loading."""
    return kind.removeprefix("shoal-") if kind.startswith("shoal-") else None


class Absent(Exception):
    """An engine that can't be run here, and why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all engines share."""

    gguf: Path
    safetensors: Path
    threads: int
    vllm: Path
    """vLLM's interpreter."""
    llamacpp: Path
    logs: Path
    gguf_q8: Path | None = None
    """The same weights as Q8_0."""
    w8a8: Path | None = None
    """The same weights in compressed-tensors' eight bits."""
    own: Path | None = None
    """What Shoal reads, if it isn't the GGUF."""

    def python(self, kind: Kind) -> Path:
        python = {"vllm": self.vllm, "llamacpp": self.llamacpp}.get(program(kind), Path(sys.executable))
        if not python.exists():
            raise Absent(f"{kind}: no interpreter at {python}")
        return python

    def model(self, kind: Kind) -> Path:
        if kind == "vllm-int8":
            if self.w8a8 is None:
                raise Absent(f"{kind}: no W8A8 form of this model")
            return self.w8a8
        if kind == "llamacpp-q8_0":
            if self.gguf_q8 is None:
                raise Absent(f"{kind}: no Q8_0 file of this model")
            return self.gguf_q8
        if program(kind) in ("vllm", "transformers"):
            if not self.safetensors.exists():
                raise Absent(f"{kind}: no float32 copy of this model is made: it has four times the bytes")
            return self.safetensors
        return self.own if self.own is not None and program(kind) == "shoal" else self.gguf

    def environment(self, kind: Kind) -> dict[str, str]:
        threads = str(self.threads)
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        added = {
            "OMP_NUM_THREADS": threads,
            "BENCH_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if (rounded := scheme(kind)) is not None:
            added["BENCH_QUANTIZE"] = rounded
        # The peer's own tools (a C++ compiler's wrapper, ninja) come before the system's.
        added["PATH"] = f"{self.python(kind).parent}:{kept.get('PATH', '')}"
        if kind == "vllm-bf16":
            added["BENCH_DTYPE"] = "bfloat16"
        if program(kind) == "vllm":
            cores = sorted(os.sched_getaffinity(0))[: self.threads]
            added |= {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                "VLLM_NO_USAGE_STATS": "1",
            }
        return kept | added


class Offline:
    """An engine's offline API in a process of its own."""

    def __init__(self, kind: Kind, setting: Setting) -> None:
        self.kind = kind
        self.log = setting.logs / f"{kind}-offline.log"
        command = [str(setting.python(kind)), str(HERE / f"run_{program(kind)}.py"), str(setting.model(kind))]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=setting.environment(kind),
                start_new_session=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            ready = self._answer(LOAD_SECONDS)
        except Absent:
            self.close()
            raise
        self.load_seconds = float(ready["load_seconds"])
        self.facts: dict[str, str] = ready["facts"]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, seconds: float) -> Any:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise Absent(f"{self.kind}: no answer within {seconds:g} s; see {self.log}") from None
        if not line:
            raise Absent(f"{self.kind}: ended: {_last_line(self.log)} (see {self.log})")
        return json.loads(line)

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> tuple[float, int]:
        """(seconds, tokens generated). `Absent` if it died or hung."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self._process.stdin.flush()
        answer = self._answer(ANSWER_SECONDS)
        return float(answer["seconds"]), int(answer["tokens"])

    def close(self) -> None:
        stop(self._process)


class Served:
    """An engine's OpenAI-compatible server."""

    def __init__(self, kind: Kind, setting: Setting) -> None:
        self.kind = kind
        self.log = setting.logs / f"{kind}-http.log"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        model = str(setting.model(kind))
        python = str(setting.python(kind))
        if program(kind) == "shoal":
            rounded = scheme(kind)
            command = [
                *(python, "-m", "shoal.cli", "serve", model, "--port", str(port), "--dtype", "float32"),
                *("--kv-memory", "1G", "--max-model-len", "2048", "--threads", str(setting.threads)),
                *(() if rounded is None else ("--quantize", rounded, "--kv-dtype", "int8")),
            ]
        elif program(kind) == "vllm":
            command = [
                *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)),
                *(("--dtype", "bfloat16") if kind == "vllm-bf16" else ("--dtype", "float32", "--enforce-eager")),
                *("--max-model-len", "2048", "--max-num-seqs", "64"),
            ]
        elif program(kind) == "llamacpp":
            command = [python, str(HERE / "serve_llamacpp.py"), model, str(port)]
        else:
            raise Absent(f"{kind}: has no server here")
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=setting.environment(kind), start_new_session=True
            )
        self.started = time.perf_counter()
        try:
            # vLLM listens only once it can answer; Shoal listens at once and says when it can.
            path = "/ready" if program(kind) == "shoal" else "/health"
            wait_for(self.url + path, self._process, LOAD_SECONDS, self.log)
        except Absent:
            self.close()
            raise

    def close(self) -> None:
        stop(self._process)


@contextlib.contextmanager
def shoal_server(model: str, *options: str, log: Path, seconds: float) -> Iterator[int]:
    """`shoal serve` on a free port, which is given once it is ready; stopped at the end."""
    port = free_port()
    command = [sys.executable, "-m", "shoal.cli", "serve", model, "--port", str(port), *options]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/ready", process, seconds, log)
        yield port
    finally:
        stop(process)


def wait_for(url: str, process: "subprocess.Popen[Any]", seconds: float, log: Path) -> None:
    """Until the URL answers 200; `Absent` if the process ends or the time is up."""
    deadline = time.monotonic() + seconds
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Absent(f"ended with {process.returncode}: {_last_line(log)} (see {log})")
        with contextlib.suppress(OSError, urllib.error.URLError), opener.open(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise Absent(f"not ready within {seconds:g} s; see {log}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1][-300:]


def stop(process: "subprocess.Popen[Any]") -> None:
    """End it and what it started."""
    import signal

    for sign, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
