"""A reload of `fleet.yaml`: whatever changes takes effect without a restart, but for `listen`."""

import hashlib
import json
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from service_kit import body, client, engines, served, write

from fleet import eventually
from shoal.fleet.config import FleetConfig
from shoal.fleet.service import FleetService
from shoal.observe import fleet as equipment
from shoal.observe.traces import Traced
from shoal.policy.outcomes import Outcome

KEY = {"name": "team", "sha256": hashlib.sha256(b"secret").hexdigest()}
FAKES = Path(__file__).parents[1] / "fakes"


def llama_server(folder: Path) -> Path:
    """A program that is started as llama.cpp's server and answers as the fake engine does."""
    path = folder / "llama-server"
    path.write_text(
        f"#!{sys.executable}\n"
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(FAKES)!r})\n"
        "from engine import FakeEngine\n"
        "async def main():\n"
        "    port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "    await FakeEngine('own', model='fake', port=port).start()\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def own(path: Path, program: Path, **sections: Any) -> Path:
    """A file whose replica is started here."""
    pool = {"name": "p", "model": "fake", "engine": "llamacpp", "executable": str(program)}
    logs = {"log_dir": str(path.parent / "logs")}
    path.write_text(json.dumps({"pools": [pool], "supervisor": logs} | sections))
    return path


def key_of(service: FleetService) -> str | None:
    """The key that the replica's process was started with, as the system knows it."""
    environment = Path(f"/proc/{service.supervisor.replicas[0].pid}/environ").read_bytes().split(b"\0")
    found = [entry.partition(b"=")[2].decode() for entry in environment if entry.startswith(b"LLAMA_API_KEY=")]
    return found[0] if found else None


async def reloaded(service: FleetService) -> None:
    before = service.reloads
    service.reload()
    await eventually(lambda: service.reloads > before, "it was reloaded", 60)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
async def test_the_first_key_closes_the_way_around_the_gateway(tmp_path: Path) -> None:
    """Replicas started before there were keys are renewed, and demand the gateway's own."""
    program = llama_server(tmp_path)
    async with served(own(tmp_path / "fleet.yaml", program)) as (service, url), client(url) as asking:
        assert (await asking.post("/v1/completions", json=body())).status_code == 200
        assert key_of(service) is None
        first = service.supervisor.replicas[0].pid
        own(tmp_path / "fleet.yaml", program, keys=[KEY])
        await reloaded(service)
        assert service.supervisor.replicas[0].pid != first
        assert key_of(service)
        assert (await asking.post("/v1/completions", json=body())).status_code == 401
        authorized = {"authorization": "Bearer secret"}
        assert (await asking.post("/v1/completions", json=body(), headers=authorized)).status_code == 200
        second = service.supervisor.replicas[0].pid
        own(tmp_path / "fleet.yaml", program, keys=[KEY | {"tokens_per_minute": 10**6}])
        await reloaded(service)
        assert service.supervisor.replicas[0].pid == second, "another limit is no reason"


async def test_breaker_health_limits_and_tracing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []
    monkeypatch.setattr(equipment, "set_up", started.append)
    caplog.set_level(logging.WARNING, logger="shoal.fleet")
    async with engines(1) as found:
        path = write(tmp_path / "fleet.yaml", found)
        async with served(path) as (service, url), client(url) as asking:
            changed: dict[str, Any] = {
                "breaker": {"consecutive": 1, "open_seconds": 30},
                "health": {"check_seconds": 7},
                "gateway": {"max_body_bytes": 5000},
                "tracing": True,
            }
            write(path, found, **changed)
            await reloaded(service)
            assert "restart" not in caplog.text
            assert isinstance(service.current.app, Traced)
            assert started == ["shoal-gateway"]
            assert (await asking.post("/v1/completions", json=body(prompt="x" * 6000))).status_code == 413
            replica = service.registry.get("p-0")
            replica.breaker.record(Outcome.REPLICA_FAULT, 0.0, replica.breaker.admit(0.0))
            assert not replica.breaker.allows(29.0), "one fault opens it now, for the new time"
            assert replica.breaker.allows(31.0)
            write(path, found, listen={"port": 1})
            await reloaded(service)
            assert "listen: a change needs a restart" in caplog.text
            assert not isinstance(service.current.app, Traced)


async def test_a_file_that_this_machine_cannot_serve_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What `--check` finds, a reload finds too, and says."""
    from shoal.fleet.config_file import load_config
    from shoal.fleet.machine import check_machine

    async with engines(1) as found:
        path = write(tmp_path / "fleet.yaml", found)
        async with served(path) as (service, url), client(url) as asking:

            def read() -> FleetConfig:
                config = load_config(path)
                check_machine(config)
                return config

            service._read_config = read
            write(path, found, gateway={"prompt_log": os.devnull + "/x"})
            service.reload()
            await eventually(lambda: "the configuration stays as it is" in caplog.text, "it says so")
            assert "gateway.prompt_log" in caplog.text
            assert service.reloads == 0
            assert (await asking.post("/v1/completions", json=body())).status_code == 200
