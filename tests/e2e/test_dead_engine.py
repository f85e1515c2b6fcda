"""Engine bug 20 (vllm#45644): the ranks are dead, and the API still says 200."""

import os
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from e2ekit import eventually, running

from shoal.engine.options import EngineOptions
from shoal.engine.ranks.executor import ProcessExecutor


def test_bug_20_a_dead_engine_says_503_and_ends_what_is_live(tiny_model: Path) -> None:
    options = EngineOptions(model=str(tiny_model), served_name="tiny", num_blocks=100, threads=1)
    with running(options) as replica, replica.client() as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
        assert client.get("/ready").status_code == 200
        engine = replica.replica.engine
        assert engine is not None
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            kill(engine)
            rest = [line for line in lines if line]
        assert '"code":"engine_dead"' in rest[-1]
        assert "secret" not in rest[-1]
        eventually(lambda: client.get("/ready").status_code == 503, "not ready")
        assert client.get("/health").status_code == 200
        again = client.post("/v1/completions", json=body)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "engine_dead")
        assert client.get("/metrics").status_code == 200


def test_bug_20_a_killed_rank_process_is_told_to_clients(tiny_model: Path, no_leaks: None) -> None:
    options = EngineOptions(model=str(tiny_model), served_name="tiny", num_blocks=100, threads=1, tp=2)
    with running(options) as replica, replica.client() as client:
        engine = replica.replica.engine
        assert engine is not None
        executor = engine._core._executor
        assert isinstance(executor, ProcessExecutor)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(executor.pids[1], signal.SIGKILL)
            rest = [line for line in lines if line]
        assert '"code":"engine_dead"' in rest[-1]
        eventually(lambda: client.get("/ready").status_code == 503, "not ready")
        again = client.post("/v1/completions", json=body)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "engine_dead")


def kill(engine: Any) -> None:
    """From now on the rank answers every step with a failure, as a process that died would."""

    def submit(command: object) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_exception(RuntimeError("secret of the rank"))
        return answer

    engine._core._executor.submit = submit
