"""`shoal serve`: every option is applied or refused, beside `--config` and with `--replicas`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import typer

from shoal.cli import serve as module
from shoal.cli import serve_fleet
from shoal.cli.serve_config import NOT_OF_THE_FLEET
from shoal.engine.errors import InvalidOption
from shoal.fleet.config import FleetConfig, Pool
from shoal.policy.routing import RouterConfig
from shoal.server.options import ServerOptions
from shoal.specs.errors import SpecError

app = typer.Typer(add_completion=False)
app.command()(module.serve)
COMMAND = typer.main.get_command(app)
OPTIONS = [p for p in COMMAND.params if p.name not in ("help", "config")]
VALUES = {
    "router": "prefix",
    "dtype": "bfloat16",
    "kv_dtype": "int8",
    "quantize": "int8",
    "device": "cuda",
    "kv_memory": "512M",
    "block_size": "32",
    "collectives": "gloo",
    "overlap": "off",
    "rendezvous": "env",
    "host": "0.0.0.0",
    "tp": "2",
    "pp": "2",
    "cp": "2",
    "dp": "2",
    "ep": "2",
}
FILE = {
    "pools": [{"name": "p", "model": "m", "engine": "openai", "urls": ["http://127.0.0.1:1"]}],
    "listen": {"port": 4000},
    "gateway": {"attempts": 7},
}
Run = Callable[..., tuple[FleetConfig, dict[str, Any]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """What a command line would serve: the fleet's configuration, and what else was said."""
    monkeypatch.delenv("SHOAL_API_KEY", raising=False)
    monkeypatch.setattr(module, "_set_up_logging", lambda *arguments, **more: None)

    def of(*arguments: str) -> tuple[FleetConfig, dict[str, Any]]:
        made: list[tuple[FleetConfig, dict[str, Any]]] = []

        def keep(
            console: object, config: FleetConfig, read: object, check: bool, prompt: object, key: object
        ) -> None:
            made.append((config, {"check": check, "demo_prompt": prompt, "api_key": key}))

        monkeypatch.setattr(serve_fleet, "_serve", keep)
        COMMAND.main(list(arguments), prog_name="shoal serve", standalone_mode=False)
        return made[0]

    return of


def attempt(run: Run, *arguments: str) -> tuple[FleetConfig, dict[str, Any]] | ValueError:
    """What would be served, or the refusal."""
    try:
        return run(*arguments)
    except ValueError as error:
        return error


def told(option: Any) -> list[str]:
    """An option with a value that is not its default."""
    if isinstance(option, click.Argument) or option.param_type_name == "argument":
        return ["another"]
    if option.is_flag:
        off = option.secondary_opts
        return [off[0] if option.default is True and off else option.opts[0]]
    return [option.opts[0], VALUES.get(option.name, "3")]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(FILE))
    return str(path)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_beside_a_file_every_option_is_applied_or_refused(option: Any, run: Run, file: str) -> None:
    before = run("--config", file)
    after = attempt(run, "--config", file, *told(option))
    if isinstance(after, ValueError):
        assert isinstance(after, SpecError)
        assert option.name not in NOT_OF_THE_FLEET
        assert after.field in ("model", f"--{option.name.replace('_', '-')}")
        assert "beside --config: the file says it, as" in after.accepted
        assert "docs/fleet-config.md" not in after.accepted, f"tell _ELSEWHERE where the file says {option.name}"
        return
    assert after != before, "it was dropped without a word"
    if option.name not in NOT_OF_THE_FLEET:
        assert after[0] != before[0], "it was dropped without a word"
    assert after[0].gateway.attempts == 7, "the rest of the file stays"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_with_replicas_every_option_is_applied_or_refused(option: Any, run: Run) -> None:
    arguments = ["m"] if option.name != "model" else []
    extra = [] if option.name == "replicas" else ["--replicas", "2"]
    before = run("m", "--replicas", "2")
    needed = {"spare_experts": ["--ep", "2"], "balance_steps": ["--ep", "2"], "overlap": ["--ep", "2"]}
    more = needed.get(option.name, [])
    if more:
        before = run("m", "--replicas", "2", *more)
    after = attempt(run, *arguments, *told(option), *extra, *more)
    if isinstance(after, ValueError):
        assert option.name in str(after)
    else:
        assert after != before, "it was dropped without a word"


def test_the_key_of_the_environment_is_applied(run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_API_KEY", "from-the-environment")
    (key,) = run("--config", file)[0].keys
    assert key.scopes == ("generate", "observe")
    monkeypatch.setenv("SHOAL_API_KEY", "")
    assert run("--config", file)[0].keys == ()


def test_a_key_of_the_command_line_joins_those_of_the_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(FILE | {"keys": [{"name": "team", "sha256": "0" * 64}]}))
    keys = run("--config", str(path), "--api-key", "s")[0].keys
    assert [(key.name, key.scopes) for key in keys] == [
        ("team", ("generate",)),
        ("command-line", ("generate", "observe")),
    ]


def test_without_options_the_structs_say_what_is_served(run: Run) -> None:
    """Of a replica and, for what both have, of a fleet described by a file."""
    (pool,) = run("m", "--check")[0].pools
    assert (pool.options, pool.threads, pool.layout.label()) == ({}, None, Pool(name="p", model="m").layout.label())
    config, server = run("m", "--check")[0], ServerOptions()
    of_a_file = FleetConfig(pools=(pool,))
    assert config == msgspec.structs.replace(of_a_file, router=config.router)
    assert config.router == RouterConfig()
    listen, gateway = of_a_file.listen, of_a_file.gateway
    assert (listen.host, listen.port, listen.cors_origins) == (server.host, server.port, server.cors_origins)
    assert (gateway.max_body_bytes, gateway.body_seconds, gateway.heartbeat_seconds, gateway.access_log) == (
        server.max_body_bytes,
        server.body_seconds,
        server.heartbeat_seconds,
        server.access_log,
    )
    assert of_a_file.supervisor.drain_seconds == server.drain_seconds


def test_an_empty_text_is_as_good_as_none(run: Run) -> None:
    config = run("m", "--check", "--host", "", "--api-key", "", "--chat-template", "")[0]
    assert config == run("m", "--check")[0]
    assert config.listen.host == "127.0.0.1"
    with pytest.raises(InvalidOption, match="one of auto, float32, bfloat16"):
        run("m", "--check", "--dtype", "")


def test_values_are_turned_into_the_fields_own(run: Run) -> None:
    config = run("m", "--check", "--kv-memory", "1.5GiB", "--lora", "a=b", "--lora", "c=d=e", "--max-body-mb", "3")[
        0
    ]
    loras = ({"name": "a", "path": "b"}, {"name": "c", "path": "d=e"})
    assert config.pools[0].options == {"kv_memory": 3 * 2**29, "loras": loras}
    assert config.gateway.max_body_bytes == 3 * 2**20


def test_a_router_for_a_single_replica_is_refused(run: Run) -> None:
    with pytest.raises(SpecError, match="--replicas or --config"):
        run("m", "--router", "prefix")
    with pytest.raises(SpecError, match="round_robin"):
        run("m", "--replicas", "2", "--router", "best")
