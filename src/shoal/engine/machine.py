"""What this machine offers a replica: cores, instruction sets and memory, as limited by cgroups.

Free of torch. Every figure is read from the running system; None means that it can't be told here.
"""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
# What CPU kernels for language models choose by (names as in /proc/cpuinfo of x86 and Arm).
RELEVANT_FEATURES = (
    "avx2",
    "f16c",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)


@dataclass(frozen=True, slots=True)
class Processor:
    name: str
    architecture: str
    """`x86_64`, `aarch64`, …"""
    features: tuple[str, ...]
    """Those of RELEVANT_FEATURES that are there."""
    cores: int
    """Logical cores of the machine."""
    usable_cores: float
    """Cores this process may use: the smaller of its affinity and its cgroup's CPU quota."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `usable` is what this process may still take: the smaller of free memory and the cgroup's rest."""

    total: int
    available: int
    cgroup_limit: int | None
    usable: int
    shared_total: int | None
    """Size of /dev/shm, which shared-memory collectives live in."""


def processor(cpuinfo: Path = Path("/proc/cpuinfo"), cgroup: Path = CGROUP) -> Processor:
    """The processor this process runs on."""
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    flags = set(_field(text, "flags", "Features").split())
    cores = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    quota = cpu_quota(cgroup)
    return Processor(
        name=_field(text, "model name", "Model") or platform.processor() or "unknown",
        architecture=platform.machine(),
        features=tuple(f for f in RELEVANT_FEATURES if f in flags),
        cores=cores,
        usable_cores=min(affinity, quota) if quota else affinity,
    )


def usable_cores() -> int:
    """Whole cores this process may use, at least one."""
    return max(1, int(processor().usable_cores))


def memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> Memory | None:
    """The memory of this machine; None where /proc does not tell."""
    if not meminfo.is_file():
        return None
    kib = {m[1]: int(m[2]) for m in re.finditer(r"^(\w+):\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)}
    total, available = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    limit, used = cgroup_memory(cgroup)
    left = limit - used if limit is not None else available
    return Memory(total, available, limit, max(0, min(available, left)), _shared_memory())


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Cores' worth of time the cgroup grants (v2 `cpu.max`, v1 `cpu.cfs_quota_us`); None: no limit."""
    if (text := _read(cgroup / "cpu.max")) is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    quota_us, period_us = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    if quota_us is None or period_us is None or int(quota_us) <= 0:
        return None
    return int(quota_us) / int(period_us)


def cgroup_memory(cgroup: Path = CGROUP) -> tuple[int | None, int]:
    """(limit, used) of the cgroup in bytes; limit None: no limit. Page cache that can be dropped is not `used`.

    `cgroup` is the root a container sees, which is its own; limits of a nested cgroup are not looked for.
    """
    v2 = (cgroup / "memory.max", cgroup / "memory.current", cgroup / "memory.stat")
    v1 = (
        cgroup / "memory/memory.limit_in_bytes",
        cgroup / "memory/memory.usage_in_bytes",
        cgroup / "memory/memory.stat",
    )
    for limit_file, used_file, stat_file in (v2, v1):
        limit, used = _read(limit_file), _read(used_file)
        if limit is None or used is None:
            continue
        # v1 says "no limit" with a huge number, rounded down to a page.
        if limit == "max" or int(limit) >= 1 << 60:
            return None, int(used)
        # v1 states its own share and, as total_, that of its children too; `used` covers both.
        stat = dict(line.split() for line in (_read(stat_file) or "").splitlines())
        droppable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        return int(limit), max(0, int(used) - droppable)
    return None, 0


def _shared_memory() -> int | None:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def _field(text: str, *names: str) -> str:
    for name in names:
        if found := re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1].strip()
    return ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
