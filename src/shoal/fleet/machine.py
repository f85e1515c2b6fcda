"""What a configuration needs of this machine: programs, models, folders. Looked at before anything starts."""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from shoal.fleet.config import ConfigError, FleetConfig, Pool

_PROGRAMS: Mapping[str, str] = MappingProxyType(
    {"llamacpp": "llama-server", "vllm": "python3", "sglang": "python3"}
)
"""Started by an engine's adapter where the pool names no `executable`."""
_PATH_STARTS = ("/", "./", "../")


def check_machine(config: FleetConfig) -> None:
    """Raise `ConfigError` for the first thing that isn't here."""
    for place, pool in enumerate(config.pools):
        if not pool.urls:
            _check_program(pool, f"pools[{place}]")
            _check_model(pool, f"pools[{place}]")
    if config.shared is not None and importlib.util.find_spec("redis") is None:
        raise ConfigError("shared", config.shared.redis, "the package redis: pip install 'shoal[redis]'")
    if config.tracing and importlib.util.find_spec("opentelemetry") is None:
        raise ConfigError("tracing", True, "the packages of OpenTelemetry: pip install 'shoal[otel]'")
    if config.supervisor.log_dir is not None:
        _check_folder(Path(config.supervisor.log_dir), "supervisor.log_dir")
    if config.gateway.prompt_log is not None:
        log = Path(config.gateway.prompt_log)
        if log.is_dir() or (log.exists() and not os.access(log, os.W_OK)):
            raise ConfigError("gateway.prompt_log", str(log), "a file that may be written")
        _check_folder(log.parent, "gateway.prompt_log")


def _check_program(pool: Pool, path: str) -> None:
    program = pool.executable or _PROGRAMS.get(pool.engine)
    if program is None or shutil.which(program, path=pool.environment.get("PATH")) is not None:
        return
    what = "a program on this machine that may be run"
    if pool.executable is None:
        what += f"; {pool.engine} is started with {program} where nothing is given, and there is none on the PATH"
    raise ConfigError(f"{path}.executable", pool.executable, what)


def _check_model(pool: Pool, path: str) -> None:
    is_path = pool.model.startswith(_PATH_STARTS) or (pool.engine == "llamacpp" and pool.model.endswith(".gguf"))
    if is_path and not Path(pool.model).exists():
        raise ConfigError(f"{path}.model", pool.model, "a file or folder that is there")


def _check_folder(folder: Path, field: str) -> None:
    """Whether a file can be made in it, once it has been made itself."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConfigError(field, str(folder), f"a folder; {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(field, str(folder), f"a folder that may be written; {there} may not")
