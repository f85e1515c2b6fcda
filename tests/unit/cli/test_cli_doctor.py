"""`shoal doctor` on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def doctor(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
        env={**os.environ, **environment},
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


def test_it_compares_every_kernel_variant_that_runs_here_with_the_reference(tmp_path: Path) -> None:
    rows = dict(json.loads(doctor("--json", "--cache-dir", str(tmp_path)))["sections"]["Compute"])
    if rows["compiled kernels"].startswith("none"):
        pytest.skip(rows["compiled kernels"])
    variants = rows["compiled kernels"].split(" (")[0].split(", ")
    for variant in variants:
        assert rows[f"{variant} self-test"].startswith("passed: ")
    assert "not tested" not in str(rows)


def test_it_says_which_kernels_run_and_why_none_are_compiled(tmp_path: Path) -> None:
    """An empty SHOAL_KERNELS_LIBRARY is as if the package had been built without a compiler."""
    report = json.loads(doctor("--json", "--cache-dir", str(tmp_path), SHOAL_KERNELS_LIBRARY=""))["sections"]
    rows = dict(report["Compute"])
    assert rows["kernels"] == "cpu: plain PyTorch, slower"
    assert "without a C++ compiler" in rows["compiled kernels"]
