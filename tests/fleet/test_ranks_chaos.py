"""A fault at a random step of a whole engine: no hang, no wrong token, every request ended, nothing left."""

import random
import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from rank_kit import expose_workers, gone

from parity.enginekit import save_engine_checkpoint
from parity.forkkit import fork_ranks
from parity.tiny import MIXTURES, TinyModel
from shoal.engine.core import EngineCore
from shoal.engine.errors import EngineDead
from shoal.engine.load import load_engine
from shoal.engine.options import EngineOptions
from shoal.engine.ranks import executor as ranks_executor
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.engine.sampling.params import SamplingParams

TIMEOUT = 3.0
KINDS = {
    "kill": r"was killed by signal 9",
    "stop": r"is stopped: no heartbeat for \d\.\d s",
    "sleep": r"is late: (other ranks have waited|a step has taken more than)",
    "raise": r"failed: RuntimeError: the coffee machine is empty",
    "memory": r"failed: out of memory: no room for 12 bytes",
    "exit": r"ended with exit code 7",
}
DENSE = TinyModel("llama", "LlamaConfig", {"num_hidden_layers": 2, "hidden_size": 48})
MIXTURE = next(tiny for tiny in MIXTURES if tiny.name == "mixtral")
CASES: tuple[tuple[TinyModel, Mapping[str, int]], ...] = (
    (DENSE, {"tp": 2}),
    (DENSE, {"dp": 2}),
    (DENSE, {"pp": 2}),
    (DENSE, {"tp": 2, "pp": 2}),
    (DENSE, {"cp": 2}),
    (MIXTURE, {"ep": 2}),
    (MIXTURE, {"tp": 2, "ep": 2}),
)
PROMPTS = [[5 + index, 9, 11, 4 + index, 7] for index in range(6)]
NEW = 12
pytestmark = pytest.mark.usefixtures("no_leaks")

Answers = list[tuple[int, ...]]
Right = Callable[[str], tuple[Path, Answers]]


@pytest.fixture(scope="session")
def right(tmp_path_factory: pytest.TempPathFactory) -> Right:
    """A model's checkpoint and what one rank answers, by the model's name."""

    def ask(name: str) -> tuple[Path, Answers]:
        directory = tmp_path_factory.mktemp(name)
        save_engine_checkpoint(DENSE if name == DENSE.name else MIXTURE, directory)
        core = start(directory)
        try:
            answers, endings = drive(core)
        finally:
            core.close()
        assert endings == ["length"] * len(PROMPTS)
        return directory, answers

    return cache(ask)


def start(checkpoint: Path, **options: object) -> EngineCore:
    settings = EngineOptions(model=str(checkpoint), num_blocks=64, block_size=4, threads=1, **options)  # type: ignore[arg-type]
    core, frontend = load_engine(settings)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        core.add(frontend.prepare(prompt, params, str(index)))
    return core


def drive(core: EngineCore) -> tuple[Answers, list[str]]:
    """Run until every request has ended; their tokens and finish reasons. What is delivered twice fails."""
    tokens: Answers = [()] * len(PROMPTS)
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


def inject(monkeypatch: pytest.MonkeyPatch, right: Right, seed: int) -> None:
    """One fault somewhere; whatever was delivered is right, every request ended, nothing is left."""
    dice = random.Random(seed)
    model, layout = CASES[seed % len(CASES)]
    kind, rank, step = dice.choice(list(KINDS)), dice.randrange(ranks_of(layout)), dice.randrange(NEW)
    checkpoint, expected = right(model.name)
    expose_workers(monkeypatch, f"{kind} {rank} {step}")
    monkeypatch.setattr(ranks_executor, "WORKER", "rank_workers:real")
    core = start(checkpoint, rank_timeout=TIMEOUT, step_timeout=12.0, **layout)
    try:
        executor = core._executor
        assert isinstance(executor, ProcessExecutor)
        pids = executor.pids
        begun = time.monotonic()
        answers, endings = drive(core)
        for answer, ending, whole in zip(answers, endings, expected, strict=True):
            assert answer == whole[: len(answer)]
            assert (ending == "length") == (len(answer) == len(whole))
        assert core.dead is not None, f"the fault {kind} {rank} {step} was not noticed"
        assert re.match(rf"step \d+ failed: rank {rank} \([^)]*\) {KINDS[kind]}", core.dead)
        assert time.monotonic() - begun < 60
        assert gone(pids)
        with pytest.raises(EngineDead):
            core.add(None)  # type: ignore[arg-type]
    finally:
        core.close()


def ranks_of(layout: Mapping[str, int]) -> int:
    return EngineOptions(model="m", **layout).layout.world


def test_a_fault_never_yields_a_wrong_token_nor_a_request_without_an_end(
    monkeypatch: pytest.MonkeyPatch, right: Right
) -> None:
    inject(monkeypatch, right, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_faults(monkeypatch: pytest.MonkeyPatch, right: Right, seed: int) -> None:
    fork_ranks(monkeypatch)
    inject(monkeypatch, right, seed)
