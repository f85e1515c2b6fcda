"""A fleet of two real replicas: what it says; what happens when one dies, hangs or is renewed, or all is over."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from e2ekit import eventually
from fleet_kit import Served, alive, fleet_process


def test_it_says_where_it_is_and_answers(pair: Served) -> None:
    said = pair.said()
    assert f"dashboard  {pair.url}/" in said
    assert "tiny-0, tiny-1" in said
    answer = pair.complete("Hello", 8)
    assert answer.status_code == 200
    assert answer.headers["x-shoal-replica"] in ("tiny-0", "tiny-1")
    assert "default:" in answer.headers["x-shoal-reason"]
    assert answer.json()["usage"]["completion_tokens"] == 8
    models = httpx.get(f"{pair.url}/v1/models", trust_env=False).json()["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [("tiny", 1024)]


def test_its_gateway_refuses_what_no_context_of_its_replicas_holds(pair: Served) -> None:
    eventually(lambda: pair.whole(2), "both replicas are ready", 60)
    answer = pair.complete("the quick brown fox " * 100_000, 8)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "x-shoal-replica" not in answer.headers


def test_cores_are_shared_out(pair: Served) -> None:
    threads = {psutil.Process(pid).num_threads() for pid in pair.pids()}
    cores = len(os.sched_getaffinity(0))
    logs = "".join(path.read_text() for path in pair.home.rglob("tiny-*.log"))
    assert len(pair.pids()) == 2
    # A pool of compute threads as large as the machine would show up here.
    assert max(threads) < 30 + cores, logs


def test_a_killed_replica_costs_nobody_an_answer(pair: Served) -> None:
    eventually(lambda: pair.whole(2), "both replicas are ready", 60)
    expected = pair.complete("abc", 200).json()["choices"][0]["text"]
    victims: list[str] = []

    def kill_once(response: httpx.Response) -> None:
        if not victims:
            victims.append(response.headers["x-shoal-replica"])
            os.kill(pair.replica(victims[0])["pid"], signal.SIGKILL)

    restarts = sum(r["restarts"] for r in pair.view()["replicas"])
    streamed = pair.stream("abc", 200, kill_once)
    assert (streamed.status, streamed.done, streamed.error) == (200, True, None)
    assert streamed.text == expected
    assert pair.metric("shoal_fleet_continuations_total") >= 1
    eventually(lambda: pair.whole(2), "it is back to full strength by itself", 60)
    assert sum(r["restarts"] for r in pair.view()["replicas"]) == restarts + 1
    assert f"replica {victims[0]} was ended by signal 9; it is started again" in pair.said()


def test_a_stopped_replica_is_passed_over_and_taken_back(pair: Served) -> None:
    eventually(lambda: pair.whole(2), "both replicas are ready", 60)
    victim = pair.view()["replicas"][0]
    os.kill(victim["pid"], signal.SIGSTOP)
    try:
        eventually(lambda: pair.replica(victim["name"])["state"] == "unhealthy", "its silence is noticed", 30)
        answers = [pair.complete(f"{n}", 4) for n in range(6)]
        assert {a.status_code for a in answers} == {200}
        assert {a.headers["x-shoal-replica"] for a in answers} == {"tiny-1"}
    finally:
        os.kill(victim["pid"], signal.SIGCONT)
    eventually(lambda: pair.whole(2), "it is taken back", 30)
    assert pair.replica(victim["name"])["pid"] == victim["pid"]


def test_renewal_drops_no_request(pair: Served) -> None:
    eventually(lambda: pair.whole(2), "both replicas are ready", 60)
    before, stop, seen = set(pair.pids()), threading.Event(), []

    def load() -> None:
        while not stop.is_set():
            seen.append(pair.complete("abc", 20).status_code)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        pair.process.send_signal(signal.SIGUSR2)
        eventually(lambda: "renewal: started" in pair.said(), "it was renewed", 90)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert pair.whole(2)
    assert not before & set(pair.pids())
    assert set(seen) == {200}
    assert len(seen) > 3


def test_what_replicas_print_is_kept(pair: Served) -> None:
    logs = list(pair.home.rglob("tiny-*.log"))
    assert {log.name for log in logs} == {"tiny-0.log", "tiny-1.log"}
    assert any("ready" in log.read_text() for log in logs)


def test_nothing_outlives_a_fleet_that_is_killed(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_folder), "--replicas", "2", "--num-blocks", "50"]
    with fleet_process(*arguments, home=tmp_path, check=False) as served:
        children = psutil.Process(served.process.pid).children(recursive=True)
        assert len(children) >= 2
        served.process.kill()
        served.process.wait(10)
        eventually(lambda: not any(alive(child) for child in children), "its replicas end with it", 10)


@pytest.mark.parametrize("seconds", [0.3, 1.5, 4.0])
def test_it_can_be_stopped_while_it_starts(seconds: float, tiny_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal.cli", "serve", str(tiny_folder), "--replicas", "2", "--port", "0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    deadline = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > deadline or process.poll() is not None, "some of the start-up is done")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode in (0, 130), said
    assert "Traceback" not in said
    eventually(lambda: not any(alive(child) for child in children), "no replica is left", 10)


def test_a_model_that_cannot_work_is_said_once_and_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal.cli", "serve", "/no/such/model", "--replicas", "2", "--port", "0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert found.returncode == 1
    assert "/no/such/model" in found.stderr
    assert "Traceback" not in found.stderr + found.stdout
    assert "started again" not in found.stderr


def test_a_replica_that_crashes_in_a_loop_is_given_up(tmp_path: Path) -> None:
    config = {
        "pools": [{"name": "bad", "model": "m", "engine": "llamacpp", "executable": "/bin/false"}],
        "supervisor": {"crash_limit": 3, "backoff_seconds": 0.01},
    }
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "shoal.cli", "serve", "--config", str(path), "--port", "0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert found.returncode == 1
    assert found.stderr.count("exited with 1; it is started again") == 2
    assert "replica bad-0 exited with 1; it is given up" in found.stderr
    assert "pool bad has no replica" in found.stderr
