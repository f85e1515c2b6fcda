"""Ranks that are killed, stopped, late or broken, with real processes: named, within the deadline, nothing left."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import pytest
from rank_kit import command, entry, expose_workers, gone, ranks
from rank_workers import SLOW_STAGE

from parity.enginekit import save_engine_checkpoint
from parity.tiny import TinyModel
from shoal.engine import executor_processes
from shoal.engine.core import EngineCore
from shoal.engine.errors import EngineDead
from shoal.engine.load import load_engine
from shoal.engine.messages import StepCommand
from shoal.engine.options import EngineOptions
from shoal.engine.sampling.params import SamplingParams
from shoal.policy.batching.plan import StepPlan

TIMEOUT = 3.0
WORDS = {
    "kill": r"was killed by signal 9",
    "stop": r"is stopped: no heartbeat for \d\.\d s",
    "sleep": r"is late: other ranks have waited \d\.\d s for it",
    "raise": r"failed: RuntimeError: the coffee machine is empty",
    "memory": r"failed: out of memory: no room for 12 bytes",
    "exit": r"ended with exit code 7",
}
pytestmark = pytest.mark.usefixtures("no_leaks")


def slow(*values: object) -> list[object]:
    """The first half of the values in every run, the others in the slow one: each starts processes."""
    half = len(values) // 2
    return [*values[:half], *(pytest.param(value, marks=pytest.mark.slow) for value in values[half:])]


@pytest.mark.parametrize("kind", list(WORDS))
def test_a_rank_that_fails_is_named_in_time_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # Only one that is late has to be missed by others, in a collective.
    worker, victim = ("rank_workers:probe", 1) if kind == "sleep" else ("rank_hollow:hollow", 0)
    with ranks(monkeypatch, f"{kind} {victim} 2", worker, tp=2, rank_timeout=TIMEOUT) as executor:
        for step in range(2):
            executor.submit(command(step, entry(1, step))).result(30)
        start = time.monotonic()
        future = executor.submit(command(2, entry(1, 2)))
        with pytest.raises(EngineDead, match=rf"^rank {victim} \(tp {victim} of 2\) {WORDS[kind]}"):
            future.result(TIMEOUT + 2)
        assert time.monotonic() - start < TIMEOUT + 1
        assert gone(executor.pids)
        with pytest.raises(EngineDead, match=f"rank {victim}"):
            executor.submit(command(3, entry(1, 3))).result(1)


def test_a_rank_that_dies_idle_is_noticed_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(monkeypatch, worker="rank_hollow:hollow", tp=2, rank_timeout=TIMEOUT) as executor:
        executor.submit(command(0, entry(1, 2))).result(30)
        os.kill(executor.pids[0], signal.SIGKILL)
        assert gone(executor.pids)
        with pytest.raises(EngineDead, match=r"rank 0 \(tp 0 of 2\) was killed by signal 9"):
            executor.submit(command(1, entry(1, 2))).result(5)


def test_a_step_that_takes_too_long_names_the_rank_where_no_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(
        monkeypatch, "sleep 1 0", "rank_hollow:hollow", dp=2, rank_timeout=TIMEOUT, step_timeout=2.0
    ) as executor:
        plans = [command(0, entry(lane, 1)).plan for lane in range(2)]
        sequences = plans[0].sequences + plans[1].sequences
        future = executor.submit(StepCommand(StepPlan(0, 0, sequences, lanes=tuple(plans))))
        with pytest.raises(EngineDead, match=r"rank 1 \(dp 1 of 2\) is late: a step has taken more than 2 s"):
            future.result(10)


def test_a_stage_may_compute_for_longer_than_the_rank_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOW_STAGE, "2.5")
    with ranks(monkeypatch, pp=2, rank_timeout=1.5) as executor:
        executor.submit(command(0, entry(1, 2))).result(30)


_PARENT = """
import sys, time
from pathlib import Path
from shoal.engine.executor_processes import ProcessExecutor
from shoal.engine.options import EngineOptions
print("starting", flush=True)
executor = ProcessExecutor.start(
    EngineOptions(model="none", tp=2, threads=1), Path("none"), cores=1, worker="rank_hollow:hollow"
)
print(*executor.pids, flush=True)
time.sleep(3600)
"""


def parent() -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)


def test_ranks_end_when_their_executor_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is stopped and cannot notice by itself."""
    expose_workers(monkeypatch, "none 0 0")
    with parent() as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = tuple(int(pid) for pid in process.stdout.readline().split())
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGSTOP)
        process.kill()
        process.wait(10)
        assert gone(pids), "ranks outlived their parent"


@pytest.mark.parametrize("after", slow(0.3, 2.0, 0.0, 0.1, 1.0))
def test_ctrl_c_during_start_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, after: float) -> None:
    # A marker in the environment finds ranks whose pids the parent had no time to tell.
    marker = f"SHOAL_TEST_MARK={os.getpid()}-{after}"
    monkeypatch.setenv(*marker.split("="))
    expose_workers(monkeypatch, "none 0 0")
    with parent() as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)  # the moment of the interrupt is what is tested
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
        deadline = time.monotonic() + 5
        while left := marked(marker):
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)


def marked(marker: str) -> list[int]:
    """Processes with `marker` in their environment, this one's aside."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if marker.encode() in environment.split(b"\0"):
                found.append(int(process.name))
    return found


# The whole engine, with a model


TINY = TinyModel("llama", "LlamaConfig", {"num_hidden_layers": 2, "hidden_size": 48})
PROMPTS = [[5 + index, 9, 11, 4 + index, 7] for index in range(6)]
LAYOUTS = ({"tp": 2}, {"dp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}, {"cp": 2})


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-llama")
    save_engine_checkpoint(TINY, directory)
    return directory


@pytest.fixture(scope="session")
def right(checkpoint: Path) -> list[tuple[int, ...]]:
    """What one rank answers."""
    core = start(checkpoint)
    try:
        answers, endings = drive(core)
    finally:
        core.close()
    assert endings == ["length"] * len(PROMPTS)
    return answers


def start(checkpoint: Path, **options: object) -> EngineCore:
    settings = EngineOptions(model=str(checkpoint), num_blocks=64, block_size=4, threads=1, **options)  # type: ignore[arg-type]
    core, frontend = load_engine(settings)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        core.add(frontend.prepare(prompt, params, str(index)))
    return core


def drive(core: EngineCore) -> tuple[list[tuple[int, ...]], list[str]]:
    """Run until every request has ended; their tokens and finish reasons. What is delivered twice fails."""
    tokens: list[tuple[int, ...]] = [()] * len(PROMPTS)
    endings = [""] * len(PROMPTS)
    while not all(endings):
        try:
            outputs = core.step()
        except EngineDead as error:
            outputs = core.fail_all(str(error))
        for output in outputs:
            index = int(output.request_id)
            assert not endings[index], "news of a request that has ended"
            tokens[index] += output.token_ids
            endings[index] = output.finish_reason or ""
            assert (output.error is not None) == (output.finish_reason == "error")
    core.check()
    return tokens, endings


def inject(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, right: list[tuple[int, ...]], seed: int) -> None:
    """One fault somewhere; whatever was delivered is right, every request ended, nothing is left."""
    dice = random.Random(seed)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    kind, rank, step = dice.choice(list(WORDS)), dice.randrange(prod(layout.values())), dice.randrange(12)
    expose_workers(monkeypatch, f"{kind} {rank} {step}")
    monkeypatch.setattr(executor_processes, "WORKER", "rank_workers:real")
    core = start(checkpoint, rank_timeout=TIMEOUT, step_timeout=6.0, **layout)
    try:
        pids = core._executor.pids  # type: ignore[attr-defined]
        begun = time.monotonic()
        answers, endings = drive(core)
        for answer, ending, expected in zip(answers, endings, right, strict=True):
            assert answer == expected[: len(answer)]
            assert (ending == "length") == (len(answer) == len(expected))
        assert core.dead is not None, f"the fault {kind} {rank} {step} was not noticed"
        assert re.match(rf"step \d+ failed: rank {rank} \(", core.dead)
        assert time.monotonic() - begun < 30
        assert gone(pids)
        with pytest.raises(EngineDead):
            core.add(None)  # type: ignore[arg-type]
    finally:
        core.close()


@pytest.mark.parametrize("seed", range(1))
def test_a_fault_never_yields_a_wrong_token_nor_a_request_without_an_end(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, right: list[tuple[int, ...]], seed: int
) -> None:
    inject(monkeypatch, checkpoint, right, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_faults(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, right: list[tuple[int, ...]], seed: int
) -> None:
    inject(monkeypatch, checkpoint, right, seed)
