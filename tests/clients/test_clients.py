"""Client stacks in wide use against `shoal serve`. Each has an environment of its own: their pins differ.

`make test-clients` makes the environments from `requirements/*.txt` and runs this.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.realmodel]

HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("SHOAL_CLIENTS", HERE.parents[1] / ".make" / "clients"))
EXPECTED = {
    "langchain": 7,
    "llamaindex": 5,
    "litellm": 6,
    "instructor": 3,
    "pydantic_ai": 6,
    "openai_agents": 2,
}
"""The lines that a program prints, one for each thing that worked."""


def python_of(stack: str) -> Path:
    """The interpreter of a stack's environment; skips where it is not made."""
    python = ENVIRONMENTS / stack / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: run `make test-clients`")
    return python


def run(stack: str, *arguments: str) -> list[str]:
    """Run a stack's program; return the lines that it printed."""
    program = HERE / "programs" / f"use_{stack}.py"
    done = subprocess.run(
        [python_of(stack), program, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        # No client may send what it sees to its maker, nor read another endpoint from the environment.
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("stack", EXPECTED)
def test_the_stack_works_unchanged(stack: str, endpoint: str) -> None:
    lines = run(stack, endpoint, "smollm2")
    assert len(lines) == EXPECTED[stack], lines


def test_lm_eval_gives_the_figures_of_transformers(endpoint: str, smollm2_path: Path) -> None:
    lines = run("lm_eval", endpoint, "smollm2", str(smollm2_path))
    assert len(lines) == 5, lines
