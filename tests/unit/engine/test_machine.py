"""What is read of processor, memory and cgroups, from files as the kernel writes them."""

from pathlib import Path

import psutil
import pytest

from shoal.engine.machine import cgroup_memory, cpu_quota, memory, processor

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_this_machine_agrees_with_psutil() -> None:
    found = memory()
    assert found is not None
    assert found.total == psutil.virtual_memory().total
    assert 0 < found.usable <= found.available <= found.total
    assert processor().cores == psutil.cpu_count()


def test_features_of_a_processor(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu avx2 avx512_vnni amx_int8 nx\n")
    found = processor(info, tmp_path)
    assert (found.name, found.features) == ("Some CPU", ("avx2", "avx512_vnni", "amx_int8"))


def test_arm_calls_them_features(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n")
    assert processor(info, tmp_path).features == ("asimd", "i8mm", "bf16")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({}, None),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    assert cpu_quota(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "max", "memory.current": "5"}, (None, 5)),
        (
            {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 1\ninactive_file 200\nx 3"},
            (1000, 500),
        ),
        (
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "700",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300",
            },
            (1000, 400),
        ),
        ({"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "7"}, (None, 7)),
        ({}, (None, 0)),
    ],
)
def test_cgroup_memory(tmp_path: Path, files: dict[str, str], expected: tuple[int | None, int]) -> None:
    assert cgroup_memory(write(tmp_path, files)) == expected


def test_the_cgroup_bounds_what_is_usable(tmp_path: Path) -> None:
    write(tmp_path, {"meminfo": "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:    6291456 kB"})
    write(tmp_path / "cgroup", {"memory.max": str(2 * GIB), "memory.current": str(GIB // 2)})
    found = memory(tmp_path / "meminfo", tmp_path / "cgroup")
    assert found is not None
    assert (found.total, found.available, found.usable) == (8 * GIB, 6 * GIB, 3 * GIB // 2)
    assert memory(tmp_path / "nothing") is None
