"""`shoal dashboard export`: to standard output, to a file, never over a file unasked."""

import json
from pathlib import Path

import pytest

from shoal.cli import entry


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exited:
        entry.main(["dashboard", "export", *arguments])
    assert isinstance(exited.value.code, int)
    return exited.value.code


def test_it_is_written_to_a_file_or_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shoal.json"
    assert run(str(path)) == 0
    written = json.loads(path.read_text())
    assert run() == 0
    assert json.loads(capsys.readouterr().out) == written
    # Any Prometheus will do: none is named.
    assert {panel["datasource"]["uid"] for panel in written["panels"]} == {"${datasource}"}
    assert len({panel["id"] for panel in written["panels"]}) == len(written["panels"])


def test_a_file_is_replaced_only_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    assert run(str(path)) == 1
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "{}"
    assert run(str(path), "--force") == 0
    assert len(path.read_text()) > 1000
    assert run(str(tmp_path / "none" / "x.json")) == 1
    assert "No such file" in capsys.readouterr().err
