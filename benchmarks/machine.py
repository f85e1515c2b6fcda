"""What a figure depends on: the machine, its load, the versions, the commit."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from shoal.workload.stats import ratio_estimate

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


def processor() -> tuple[str, tuple[str, ...]]:
    """(model name, the vector extensions that matter) as the kernel says."""
    name, flags = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = value
    known = set(flags.split())
    return name, tuple(f for f in FLAGS if f in known)


def describe() -> list[tuple[str, str]]:
    """Facts for a report, read now."""
    name, flags = processor()
    memory = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    return [
        ("date", datetime.now(UTC).isoformat(timespec="minutes")),
        ("machine", f"{name} ({', '.join(flags)}), {cores} cores, {memory:.0f} GiB, {platform.release()}"),
        ("python", f"{platform.python_version()} at {Path(sys.executable).resolve()}"),
        ("load before", f"{load} (1, 5, 15 min)"),
        ("commit", commit()),
    ]


def commit() -> str:
    """The commit of this checkout, marked where files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=False, timeout=20
        )
        return done.stdout.strip()

    found = git("rev-parse", "--short=12", "HEAD") or "unknown"
    return found + (" with changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def append(path: Path, title: str, facts: list[tuple[str, str]], body: str) -> None:
    """Add a dated entry at the end of a Markdown file, usually `benchmarks/results/SCRIPT.md`, which may be new."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Results of benchmarks/{path.stem}.py\n", encoding="utf-8")
    lines = [f"\n### {title}\n", *(f"- {name}: {value}" for name, value in facts), "", body.rstrip(), ""]
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines))


def ratio(own: Sequence[float], other: Sequence[float]) -> str:
    """The mean ratio of paired figures with its 95 % interval; a dash without pairs."""
    pairs = [a / b for a, b in zip(own, other, strict=False)]
    if not pairs:
        return "–"
    e = ratio_estimate(pairs)
    return f"{e.value:.2f}" + ("" if e.low is None else f" [{e.low:.2f}, {e.high:.2f}]")
