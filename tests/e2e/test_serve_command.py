"""`shoal serve` as users run it: what it prints, how it stops, what it says when it can't."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from e2ekit import eventually, running, serve_process

from shoal.engine.options import EngineOptions


def start(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shoal.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_demo_prompt_then_serves_then_drains(tiny_model: Path) -> None:
    arguments = [str(tiny_model), "--served-name", "tiny", "--num-blocks", "100", "--access-log"]
    with serve_process(*arguments, "--demo-prompt", "Hello there") as server:
        text = "".join(server.output)
        assert "> Hello there" in text
        assert "tokens, first after" in text
        assert "tokens/s" in text
        assert "1,584 tokens (99 blocks of 16)" in text or "1,600 tokens (100 blocks of 16)" in text
        logged = '"path":"/v1/chat/completions","status":200'
        eventually(lambda: logged in "".join(server.output), "the request is in the log")
        body = {"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": True}
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False)
            )
        )
        thread.start()
        eventually(lambda: server.metric("shoal_requests_running") == 1, "the request runs")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        thread.join(10)
        # It was in flight when the server was told to stop, and was answered all the same.
        assert answers[0].json()["usage"]["completion_tokens"] == 400


def test_deadline_of_the_drain_ends_streams_with_an_error(tiny_model: Path) -> None:
    arguments = [str(tiny_model), "--served-name", "tiny", "--num-blocks", "100", "--drain-seconds", "0"]
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with (
        serve_process(*arguments) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False) as response,
    ):
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert server.wait() == 0


def drains(client: httpx.Client) -> bool:
    """On a connection that is open, a server that drains still answers, and says so; it accepts no new ones."""
    try:
        return client.get("/ready").status_code == 503
    except httpx.ConnectError:
        # The idle connection was closed meanwhile, which takes 5 seconds: a busy machine.
        return True


def test_second_signal_stops_at_once(tiny_model: Path) -> None:
    # One sequence at a time: sixteen answers of a thousand tokens take longer than the test does.
    limits = ["--num-blocks", "100", "--max-num-seqs", "1", "--drain-seconds", "1000"]
    body = {"model": "tiny", "prompt": "a", "n": 16, "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with (
        serve_process(str(tiny_model), "--served-name", "tiny", *limits) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False, verify=False) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        next(response.iter_lines())
        client.get("/health")
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: drains(client), "it drains")
        server.process.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


def test_port_in_use(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = start(str(tiny_model), "--port", str(port))
    assert found.returncode == 1
    assert f"127.0.0.1:{port} is in use" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--kv-memory", "lots"], "kv_memory", 2),
        (["--dtype", "int3"], "dtype", 2),
        (["--block-size", "17"], "block_size", 2),
        (["--num-blocks", "4", "--kv-memory", "1G"], "kv_memory", 2),
        (["--kv-memory", "900T"], "would fit", 1),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid", 1),
    ],
)
def test_what_cannot_work_is_said_in_a_line(tiny_model: Path, arguments: list[str], says: str, code: int) -> None:
    found = start(str(tiny_model), "--port", "0", *arguments)
    assert says in found.stderr, found.stderr
    assert found.returncode == code
    assert "Traceback" not in found.stderr


def test_a_model_that_is_not_there() -> None:
    found = start("/no/such/model", "--port", "0")
    assert found.returncode != 0
    assert "/no/such/model" in found.stderr
    assert "Traceback" not in found.stderr


def test_damaged_weights_are_an_error_before_serving(tiny_model: Path, tmp_path: Path) -> None:
    copy = damaged(tiny_model, tmp_path / "cut", lambda weights: weights[: len(weights) // 2])
    found = start(str(copy), "--port", "0", "--num-blocks", "10")
    assert found.returncode == 1, found.stdout + found.stderr
    assert found.stderr.startswith("error: ")
    assert "model.safetensors" in found.stderr
    assert "Traceback" not in found.stderr
    assert "Ready" not in found.stdout


def test_other_damage_is_named_too(tiny_model: Path, tmp_path: Path) -> None:
    damages = {
        "model.safetensors": lambda weights: b"",
        "norm.weight": lambda weights: weights.replace(b"model.norm.weight", b"model.worm.weight"),
    }
    for name, damage in damages.items():
        copy = damaged(tiny_model, tmp_path / name, damage)
        options = EngineOptions(model=str(copy), num_blocks=10)
        with pytest.raises(Exception, match=name), running(options):
            pytest.fail("it serves")


def damaged(model: Path, copy: Path, damage: Callable[[bytes], bytes]) -> Path:
    shutil.copytree(model, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    return copy
