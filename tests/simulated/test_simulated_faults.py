"""The fleet's own code under seeded faults in virtual time; `make simulate-faults` runs any number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulated.planted import PLANTED
from simulated.run import simulate

SEEDS = 210
_BATCH = 30
_FIND_WITHIN = 200


@pytest.mark.parametrize("first", range(0, SEEDS, _BATCH))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    runs = [simulate(seed) for seed in range(first, first + _BATCH)]
    broken = {run.seed: run.violations for run in runs if run.violations}
    assert not broken, f"PYTHONPATH=src:tests python -m simulated SEED shows what happened: {broken}"
    assert sum(run.verdicts["ok"] for run in runs) > 10 * _BATCH


@pytest.mark.parametrize("seed", [3, 24])
def test_a_seed_gives_the_same_bytes_again(seed: int) -> None:
    one, other = simulate(seed), simulate(seed)
    assert one.journal is not None
    assert other.journal is not None
    assert one.journal.lines() == other.journal.lines()
    assert one.digest != simulate(seed + 1).digest


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    with PLANTED[bug]():
        found = next((seed for seed in range(_FIND_WITHIN) if simulate(seed).violations), None)
    assert found is not None, f"{_FIND_WITHIN} seeds didn't find {bug}"


def test_a_seed_gives_the_same_bytes_in_another_process() -> None:
    program = "from simulated.run import simulate; print(simulate(7).digest)"
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root / 'tests'}", "PYTHONHASHSEED": "17"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == simulate(7).digest
