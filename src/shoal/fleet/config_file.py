"""Reading `fleet.yaml`: checked before anything starts.

Every error names the path in the file, the value, and what would be accepted.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.fleet.config import ConfigError, FleetConfig
from shoal.fleet.config_checks import check
from shoal.fleet.config_errors import check_known, convert
from shoal.fleet.gateway.config import GatewayConfig, KeyConfig
from shoal.policy.admission import AdmissionConfig
from shoal.policy.breaker import BreakerConfig
from shoal.policy.health import HealthConfig
from shoal.policy.routing import RouterConfig
from shoal.specs.layout import AXES

_SEPARATE = frozenset({"keys", "router", "admission"})
"""Of `GatewayConfig`: sections of their own in the file."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping; YAML's own would take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice in one mapping", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def load_config(path: Path) -> FleetConfig:
    """Read and check a file. Raises `ConfigError`, whose field begins with the file's name."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # a SafeLoader
    except OSError as error:
        raise ConfigError("config", str(path), f"a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError("config", str(path), "a file in UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(str(path), "this text", f"valid YAML ({_one_line(error)})") from None
    try:
        return parse_config(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.value, error.accepted) from None


def parse_config(raw: object) -> FleetConfig:
    """The checked configuration of what YAML or JSON gave. Raises `ConfigError`."""
    if not isinstance(raw, Mapping):
        raise ConfigError("the file", raw, f"a mapping with {', '.join(FleetConfig.__struct_fields__)}")
    # Dataclasses let unknown fields pass.
    for section, kind in (
        ("router", RouterConfig),
        ("admission", AdmissionConfig),
        ("health", HealthConfig),
        ("breaker", BreakerConfig),
        ("gateway", GatewayConfig),
    ):
        if isinstance(part := raw.get(section), Mapping):
            names = {f.name for f in dataclasses.fields(kind)} - (_SEPARATE if section == "gateway" else set())
            check_known(part, names, section)
    pools_given = raw.get("pools")
    for place, pool in enumerate(pools_given if isinstance(pools_given, list) else ()):
        if isinstance(pool, Mapping) and isinstance(layout := pool.get("layout"), Mapping):
            check_known(layout, AXES, f"pools[{place}].layout")
    keys = raw.get("keys") or ()
    for place, key in enumerate(keys if isinstance(keys, list) else ()):
        if isinstance(key, Mapping):
            check_known(key, {f.name for f in dataclasses.fields(KeyConfig)}, f"keys[{place}]")
    config: FleetConfig = convert(dict(raw), FleetConfig, "")
    pools = tuple(msgspec.structs.replace(pool, urls=tuple(map(_base_url, pool.urls))) for pool in config.pools)
    config = msgspec.structs.replace(config, pools=pools)
    check(config)
    return config


def _base_url(url: str) -> str:
    """The URL without a closing `/v1`, which clients of OpenAI's API write and paths here begin with."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
