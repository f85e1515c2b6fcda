"""What the command line says beside `--config`: applied, or refused with its place in the file."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from shoal.specs.errors import SpecError
from shoal.specs.layout import AXES
from shoal.specs.option import option_fields

if TYPE_CHECKING:
    from shoal.fleet.config import FleetConfig
    from shoal.fleet.gateway.config import KeyConfig

NOT_OF_THE_FLEET = frozenset({"config", "check", "demo_prompt"})
"""Options about the command itself."""
_ELSEWHERE = {
    "model": "pools[].model",
    "replicas": "pools[].replicas",
    "served_name": "pools[].served_name",
    "threads": "pools[].threads",
    "cors_origin": "listen.cors_origins",
}
_SOURCES = frozenset({"COMMANDLINE", "ENVIRONMENT"})


def given_options(context: Any) -> dict[str, object]:
    """Return the parameters of a click context that the user gave, by name."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name in _SOURCES
    }


def key_of(api_key: str) -> KeyConfig:
    """Return the key of the command line: who starts a fleet may see all of it."""
    from shoal.fleet.gateway.config import KeyConfig

    digest = hashlib.sha256(api_key.encode()).hexdigest()
    return KeyConfig(name="command-line", sha256=digest, scopes=("generate", "observe"))


def with_options(config: FleetConfig, given: Mapping[str, object]) -> FleetConfig:
    """Return the file's configuration with the options that were given. Raises `SpecError` for what it must say."""
    for name, value in given.items():
        if name in NOT_OF_THE_FLEET:
            continue
        if name not in _APPLY:
            raise SpecError(
                name if name == "model" else f"--{name.replace('_', '-')}",
                value,
                f"nothing beside --config: the file says it, as {_place(name)}",
            )
        config = _APPLY[name](config, value)
    return config


def _place(name: str) -> str:
    from shoal.engine.options import EngineOptions

    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in AXES:
        return f"pools[].layout.{name}"
    for field in option_fields(EngineOptions).values():
        if field.parameter == name:
            return f"pools[].options.{field.name}"
    return "a field described in docs/fleet-config.md"


def _listen(field: str) -> Callable[[FleetConfig, Any], FleetConfig]:
    def apply(config: FleetConfig, value: Any) -> FleetConfig:
        listen = msgspec.structs.replace(config.listen, **{field: value})
        return msgspec.structs.replace(config, listen=listen)

    return apply


def _gateway(field: str, factor: int = 1) -> Callable[[FleetConfig, Any], FleetConfig]:
    def apply(config: FleetConfig, value: Any) -> FleetConfig:
        gateway = dataclasses.replace(config.gateway, **{field: value * factor if factor != 1 else value})
        return msgspec.structs.replace(config, gateway=gateway)

    return apply


def _drain(config: FleetConfig, value: Any) -> FleetConfig:
    supervisor = msgspec.structs.replace(config.supervisor, drain_seconds=max(0.001, value))
    return msgspec.structs.replace(config, supervisor=supervisor)


def _router(config: FleetConfig, value: Any) -> FleetConfig:
    return msgspec.structs.replace(config, router=routing(cast(str, value), config.router))


def _api_key(config: FleetConfig, value: Any) -> FleetConfig:
    key = key_of(value)
    others = tuple(known for known in config.keys if known.sha256 != key.sha256 and known.name != key.name)
    return msgspec.structs.replace(config, keys=(*others, key))


def routing(policy: str, rest: Any = None) -> Any:
    """Return a `RouterConfig` with this policy. Raises `SpecError` for one that there isn't."""
    from shoal.policy.routing import RouterConfig

    try:
        return dataclasses.replace(rest or RouterConfig(), policy=policy)
    except ValueError as error:
        raise SpecError("--router", policy, str(error).partition("expected ")[2]) from None


_APPLY: Mapping[str, Callable[[FleetConfig, Any], FleetConfig]] = {
    "host": _listen("host"),
    "port": _listen("port"),
    "api_key": _api_key,
    "router": _router,
    "access_log": _gateway("access_log"),
    "max_body_mb": _gateway("max_body_bytes", 2**20),
    "drain_seconds": _drain,
    "heartbeat_seconds": _gateway("heartbeat_seconds"),
}
