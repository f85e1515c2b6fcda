"""`shoal doctor`: what this machine offers, as a table or as JSON."""

import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

PACKAGES = ("torch", "transformers", "gguf", "llguidance", "uvicorn", "s3fs", "matplotlib", "scipy")
GIB = 1 << 30


class Report(msgspec.Struct, frozen=True):
    """Sections of (label, value) rows, in the order they are printed."""

    sections: dict[str, list[tuple[str, str]]]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="Model cache to look at.")] = None,
) -> None:
    """Show processor, memory, software, kernels and cached models: what to attach to a report of a fault."""
    sections = {"Machine": _machine(), "Software": _software(), "Compute": _compute(), "Models": _models(cache_dir)}
    report = Report(sections)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    width = max(len(label) for rows in report.sections.values() for label, _ in rows)
    for title, rows in report.sections.items():
        typer.echo(title)
        for label, value in rows:
            typer.echo(f"  {label:<{width}}  {value}")


def _machine() -> list[tuple[str, str]]:
    from shoal.engine.machine import memory, processor

    cpu, ram = processor(), memory()
    rows = [
        ("system", f"{platform.system()} {platform.release()}, {cpu.architecture}"),
        ("processor", cpu.name),
        ("instruction sets", " ".join(cpu.features) or "none of note"),
        ("cores", f"{cpu.cores} logical, {cpu.usable_cores:g} usable by this process"),
    ]
    if ram:
        limit = f"{ram.cgroup_limit / GIB:.1f} GiB" if ram.cgroup_limit is not None else "none"
        rows += [
            ("memory", f"{ram.total / GIB:.1f} GiB, {ram.usable / GIB:.1f} GiB usable now"),
            ("cgroup memory limit", limit),
        ]
        if ram.shared_total is not None:
            rows.append(("shared memory", f"{ram.shared_total / GIB:.1f} GiB at /dev/shm"))
    return rows


def _software() -> list[tuple[str, str]]:
    from shoal import __version__

    rows = [("shoal", __version__), ("python", f"{platform.python_version()} at {sys.executable}")]
    for package in PACKAGES:
        try:
            rows.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((package, "not installed"))
    return rows


def _compute() -> list[tuple[str, str]]:
    if importlib.util.find_spec("torch") is None:
        return [("engine", "needs PyTorch: pip install 'shoal[serve]'")]
    import torch

    rows = [
        ("threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"),
        ("vector width", torch.backends.cpu.get_cpu_capability()),
    ]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        rows.append((f"cuda:{index}", f"{device.name}, {device.total_memory / GIB:.1f} GiB"))
    if torch.cuda.device_count() == 0:
        rows.append(("accelerator", "none"))
    return rows + _kernels()


def _kernels() -> list[tuple[str, str]]:
    """Which kernels a replica on this processor would use, which others it could, and why none are compiled."""
    from shoal.engine.ops.kernels import select_kernels
    from shoal.engine.ops.native_library import backend
    from shoal.engine.ops.self_test import self_test
    from shoal.engine.parallel import shm_native

    found, chosen = backend(), select_kernels(os.environ.get("SHOAL_KERNELS")).name
    rows = [("kernels", chosen if chosen.startswith("native") else f"{chosen}: plain PyTorch, slower")]
    if found.library is None:
        rows.append(("compiled kernels", f"none: {found.detail}"))
    else:
        rows.append(("compiled kernels", ", ".join(found.isas) + " (SHOAL_KERNELS=native-… picks another)"))
        rows += [(f"{isa} self-test", str(self_test(select_kernels(f"native-{isa}")))) for isa in found.isas]
    between = shm_native.backend()
    rows.append(("collectives", "compiled" if between.library else f"Gloo, slower: {between.detail}"))
    return rows


def _models(cache_dir: Path | None) -> list[tuple[str, str]]:
    from shoal.engine.sources import cached_models
    from shoal.engine.sources.cache import cache_root

    rows = [("cache", str(cache_root(cache_dir)))]
    for stored in cached_models(cache_dir):
        rows.append(
            (stored.manifest.reference, f"{stored.size_bytes / 1e6:,.0f} MB, sha256 {stored.checksum[:12]}…")
        )
    return rows
