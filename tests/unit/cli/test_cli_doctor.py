"""`shoal doctor` on this machine."""

import json
import subprocess
import sys
from pathlib import Path


def doctor(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout


def test_report_names_machine_software_and_models(tmp_path: Path) -> None:
    report = json.loads(doctor("--json", "--cache-dir", str(tmp_path)))["sections"]
    software = dict(report["Software"])
    assert software["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert software["torch"] not in ("", "not installed")
    assert "kernels" in dict(report["Compute"])
    assert "memory" in dict(report["Machine"])
    assert report["Models"] == [["cache", str(tmp_path)]]
