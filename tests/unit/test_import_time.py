"""What is light stays light: judged by the modules that get loaded, not by the clock."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "huggingface_hub", "fsspec", "starlette", "uvicorn")
REPORT = "import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"


def loaded(code: str) -> set[str]:
    """Modules in `sys.modules` after running some code in a fresh interpreter."""
    script = f"try:\n    {code}\nfinally:\n    {REPORT}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import shoal",
        "import shoal.specs",
        "import shoal.policy.batching",
        "import shoal.policy.routing",
        "import shoal.plan",
        "import shoal.engine.sources",
        "import shoal.engine.options",
        "import shoal.engine.sampling.params",
    ],
)
def test_importing_loads_no_framework(code: str) -> None:
    assert not loaded(code) & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_the_top_of_the_command_line_loads_not_even_typer(arguments: list[str]) -> None:
    modules = loaded(f"from shoal.cli import main; main({arguments!r})")
    assert "shoal.cli.entry" in modules
    assert not modules & {*HEAVY, "typer", "rich", "numpy", "yaml", "msgspec"}


def test_help_of_every_command_loads_no_framework() -> None:
    from shoal.cli.registry import COMMANDS

    for name in COMMANDS:
        modules = loaded(f"from shoal.cli import main; main([{name!r}, '--help'])")
        assert not modules & set(HEAVY), name
