"""The command line as a user meets it: exit codes, one-line errors, no tracebacks."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import typer

from shoal import __version__
from shoal.cli import entry
from shoal.cli.registry import COMMANDS, Command
from shoal.engine.errors import EngineError, InvalidOption
from shoal.engine.sources import catalog


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        entry.main(arguments)
    output = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, output.out, output.err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Command]:
    """Commands of this module in place of the real ones."""
    commands = {
        name: Command(f"{__name__}:{name}", name) for name in ("refuse", "fail", "break_", "stop", "interrupt")
    }
    frozen = MappingProxyType(commands | {"group": Command(f"{__name__}:group", "g")})
    monkeypatch.setattr(entry, "COMMANDS", frozen)
    return frozen


def refuse() -> None:
    raise InvalidOption("block_size", 3, "a power of two")


def fail() -> None:
    raise EngineError("no memory")


def break_() -> None:
    raise KeyError("lost")


def stop() -> None:
    raise typer.Exit(7)


def interrupt() -> None:
    raise KeyboardInterrupt


group = typer.Typer(add_completion=False)


@group.command()
def one(number: int) -> None:
    print(number + 1)


@group.command()
def two() -> None:
    print("two")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("refuse", 2, "error: block_size=3 is not usable: expected a power of two\n"),
        ("fail", 1, "error: no memory\n"),
        ("break_", 1, "error: KeyError: 'lost'\nThis is a fault in Shoal; SHOAL_DEBUG=1 shows where.\n"),
        ("stop", 7, ""),
        ("interrupt", 130, "interrupted\n"),
    ],
)
@pytest.mark.usefixtures("failing")
def test_failures_become_a_line_and_a_code(
    name: str, code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_DEBUG", raising=False)
    assert run([name], capsys) == (code, "", message)


@pytest.mark.usefixtures("failing")
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    with pytest.raises(KeyError):
        entry.main(["break_"])


@pytest.mark.usefixtures("failing")
def test_a_group_of_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["group", "one", "4"], capsys) == (0, "5\n", "")
    code, _, message = run(["group", "one", "four"], capsys)
    assert code == 2
    assert message.startswith("error: Invalid value for 'number'")


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(["--help"], capsys)
    assert code == 0
    for name, command in COMMANDS.items():
        assert f"{name} " in text
        assert command.summary in text
    assert run([], capsys) == (0, text, "")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys) == (0, f"shoal {__version__}\n", "")


def test_unknown_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["docter"], capsys) == (2, "", "error: no command 'docter'; did you mean doctor?\n")
    code, _, message = run(["--verbose"], capsys)
    assert code == 2
    assert message.startswith("error: no option '--verbose'; there are: ")


def test_usage_error_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, message = run(["pull", "--nonsense"], capsys)
    assert code == 2
    assert "--nonsense" in message


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_registered_command_exists_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run([name, "--help"], capsys)
    assert code == 0
    assert f"shoal {name}" in text


def test_pull_prints_the_path_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    code, text, _ = run(["pull", str(file)], capsys)
    assert (code, text) == (0, f"{file}\n")


def test_pull_of_nothing_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, message = run(["pull", "./no-such-model"], capsys)
    assert (code, text) == (1, "")
    assert message == "error: model './no-such-model': no-such-model does not exist\n"


def test_pull_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(["pull", "--list", "--cache-dir", str(tmp_path)], capsys)
    assert code == 0
    assert "smollm2-135m" in text
    assert text.count("not cached") == len(catalog())


def test_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
