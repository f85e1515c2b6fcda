"""Reading `fleet.yaml`: checked before anything starts.

Every error names the path in the file, the value, and what would be accepted.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from shoal.engine.errors import InvalidOption
from shoal.engine.options import EngineOptions
from shoal.fleet.config import ConfigError, FleetConfig, Layout, Listen, Pool, SupervisorConfig
from shoal.fleet.gateway.config import GatewayConfig, KeyConfig
from shoal.fleet.health import HealthConfig
from shoal.fleet.weights import weights_of
from shoal.policy.admission import AdmissionConfig
from shoal.policy.breaker import BreakerConfig
from shoal.policy.routing import RouterConfig
from shoal.specs.errors import near_names

_SEPARATE = frozenset({"keys", "router", "admission"})
"""Of `GatewayConfig`: sections of their own in the file."""


def engine_options(pool: Pool) -> EngineOptions:
    """The options of one of Shoal's own replicas. Raises `ConfigError`."""
    layout = {axis: getattr(pool.layout, axis) for axis in ("tp", "pp", "dp", "cp", "ep")}
    fixed = {"model": pool.model, "served_name": pool.models[0], "threads": pool.threads, **layout}
    _known(pool.options, {f for f in EngineOptions.__struct_fields__ if f not in fixed}, "options")
    options: EngineOptions = _convert({**fixed, **pool.options}, EngineOptions, "options")
    try:
        options.validate()
    except InvalidOption as error:
        place = "layout" if error.field in layout else "options"
        raise ConfigError(f"{place}.{error.field}", error.value, error.accepted) from None
    return options


def load_config(path: Path) -> FleetConfig:
    """Read and check a file. Raises `ConfigError`, whose field begins with the file's name."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
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
            _known(part, names, section)
    keys = raw.get("keys") or ()
    for place, key in enumerate(keys if isinstance(keys, list) else ()):
        if isinstance(key, Mapping):
            _known(key, {f.name for f in dataclasses.fields(KeyConfig)}, f"keys[{place}]")
    config: FleetConfig = _convert(dict(raw), FleetConfig, "")
    pools = tuple(msgspec.structs.replace(pool, urls=tuple(map(_base_url, pool.urls))) for pool in config.pools)
    config = msgspec.structs.replace(config, pools=pools)
    _check(config)
    return config


def _base_url(url: str) -> str:
    """The URL without a closing `/v1`, which clients of OpenAI's API write and paths here begin with."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _check(config: FleetConfig) -> None:
    """What no field can know alone."""
    names = [pool.name for pool in config.pools]
    for place, pool in enumerate(config.pools):
        try:
            _check_pool(pool)
        except ConfigError as error:
            raise ConfigError(f"pools[{place}].{error.field}", error.value, error.accepted) from None
        if names.index(pool.name) != place:
            raise ConfigError(f"pools[{place}].name", pool.name, "a name that no other pool has")
    listen = config.listen
    if (listen.tls_certificate is None) != (listen.tls_key is None):
        missing = "tls_key" if listen.tls_key is None else "tls_certificate"
        raise ConfigError(f"listen.{missing}", None, "a PEM file: certificate and key go together")
    for name in ("tls_certificate", "tls_key"):
        path = getattr(listen, name)
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"listen.{name}", path, "a PEM file that can be read")
    _check_roles(config.pools)
    _check_weights(config.pools)
    served = {model for pool in config.pools for model in pool.served_names}
    for place, key in enumerate(config.keys):
        for model in key.models or ():
            if model not in served:
                raise ConfigError(f"keys[{place}].models", model, f"one of {', '.join(sorted(served))}")
    for place, text in enumerate(config.gateway.redact):
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"gateway.redact[{place}]", text, f"a regular expression ({error})") from None


def _check_pool(pool: Pool) -> None:
    if pool.role != "both":
        _check_split(pool)
    if pool.engine == "openai" and not pool.urls:
        raise ConfigError("urls", None, "at least one URL: an engine of kind openai can't be started here")
    for name, schemes in (("urls", ("http", "https")), ("kv_events_urls", ("tcp",))):
        for place, url in enumerate(getattr(pool, name)):
            _check_url(f"{name}[{place}]", url, schemes)
    if pool.kv_events_urls and len(pool.kv_events_urls) != len(pool.urls):
        raise ConfigError("kv_events_urls", len(pool.kv_events_urls), f"one for each of the {len(pool.urls)} urls")
    if pool.kv_events and pool.engine not in ("shoal", "vllm"):
        raise ConfigError("kv_events", True, f"false: {pool.engine} publishes none")
    if pool.api_key_env is not None and pool.api_key_env not in os.environ:
        raise ConfigError("api_key_env", pool.api_key_env, "the name of a variable that is set")
    if pool.engine == "shoal" and not pool.urls:
        engine_options(pool)
        if pool.adapters:
            raise ConfigError("adapters", list(pool.adapters), "none: they are named in options.loras")
    for place, name in enumerate(pool.adapter_names):
        if name in (*pool.models, *pool.adapter_names[:place]):
            raise ConfigError("adapters", name, "names that neither the model nor another adapter has")


def _check_split(pool: Pool) -> None:
    """Whether a pool's engine can hand KV over."""
    if pool.engine not in ("shoal", "vllm"):
        raise ConfigError("role", pool.role, f"both: {pool.engine} hands no KV over (shoal and vllm do)")
    if pool.engine == "vllm" and not pool.urls and "kv_transfer_config" not in pool.options:
        raise ConfigError("options.kv_transfer_config", None, f"a connector, as the pool's role is {pool.role}")
    if pool.engine == "shoal" and pool.urls:
        raise ConfigError("urls", pool.urls[0], "none with a role: the replicas have to share this fleet's key")
    if pool.engine == "shoal" and pool.layout.ranks > 1:
        raise ConfigError("layout", pool.layout.label(), f"one rank, as the pool's role is {pool.role}")


def _check_roles(pools: tuple[Pool, ...]) -> None:
    """Prefill and decode need each other, and have to be alike."""
    for place, pool in enumerate(pools):
        if pool.role == "both":
            continue
        wanted = "decode" if pool.role == "prefill" else "prefill"
        others = [p for p in pools if p.role == wanted and set(p.models) & set(pool.models)]
        if not others:
            raise ConfigError(
                f"pools[{place}].role",
                pool.role,
                f"both, or another pool of role {wanted} that serves {pool.models[0]} too",
            )
        for field in ("engine", "model"):
            theirs = getattr(others[0], field)
            if pool.role == "decode" and getattr(pool, field) != theirs:
                raise ConfigError(
                    f"pools[{place}].{field}", getattr(pool, field), f"{theirs}, as in pool {others[0].name}"
                )
        for name in ("block_size", "dtype", "quantize", "kv_dtype", "loras"):
            if pool.role == "decode" and pool.options.get(name) != others[0].options.get(name):
                raise ConfigError(
                    f"pools[{place}].options.{name}",
                    pool.options.get(name),
                    f"{others[0].options.get(name)}, as in pool {others[0].name}",
                )


def _check_weights(pools: tuple[Pool, ...]) -> None:
    """One name means one model: retries, continuation and routing take all its replicas for the same."""
    for place, pool in enumerate(pools):
        for other in pools[:place]:
            shared = set(pool.served_names) & set(other.served_names)
            _check_adapters(place, pool, other)
            if not shared or pool.fallback_order != other.fallback_order:
                continue
            own, theirs = weights_of(pool), weights_of(other)
            if (field := own.difference(theirs)) is None:
                continue
            value, theirs_value = (getattr(weights, field) or "by default" for weights in (own, theirs))
            raise ConfigError(
                f"pools[{place}]",
                f"{field} {value}",
                f"{field} {theirs_value} as in pool {other.name}, which serves {min(shared)!r} too; else give it "
                f"another served_name, or `fallback: true` to serve only while {other.name} can't, or both "
                "the same `weights` if they are the same model after all",
            )


def _check_adapters(place: int, pool: Pool, other: Pool) -> None:
    """A name is an adapter in both pools or in neither, and of our own engine's the same directory."""
    one, two = (set(p.adapter_names) for p in (pool, other))
    for name in pool.served_names:
        if name in other.served_names and (name in one) != (name in two):
            raise ConfigError(f"pools[{place}].adapters", name, f"a name that isn't a model's in pool {other.name}")
    if pool.engine == other.engine == "shoal":
        for lora in pool.options.get("loras", ()):
            if lora["name"] in two and lora not in other.options.get("loras", ()):
                accepted = f"the same adapter as in pool {other.name}, or another name"
                raise ConfigError(f"pools[{place}].options.loras", lora, accepted)


def _check_url(field: str, url: str, schemes: tuple[str, ...]) -> None:
    accepted = " or ".join(f"{scheme}://host:port" for scheme in schemes)
    try:
        parts = urlsplit(url)
        good = parts.scheme in schemes and bool(parts.hostname) and (parts.port is not None or "tcp" not in schemes)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(field, url, accepted)


def _known(given: Mapping[Any, object], names: Iterable[str], path: str) -> None:
    known = sorted(names)
    for name in given:
        if name not in known:
            near = near_names(str(name), known)
            accepted = f"{' or '.join(near)} (nearest)" if near else f"one of {', '.join(known)}"
            value = "(not shown)" if path.startswith("keys") else given[name]
            raise ConfigError(f"{path}.{name}" if path else str(name), value, f"another field: {accepted}")


def _convert(raw: Mapping[str, object], kind: Any, path: str) -> Any:
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _translated(str(error), raw, path) from None


def _translated(message: str, raw: object, path: str) -> ConfigError:
    """msgspec's message, with the value it speaks of: `Expected `int`, got `str` - at `$.pools[0].replicas``."""
    what, _, at = message.partition(" - at `$")
    at = at.rstrip("`").lstrip(".")
    if missing := re.match(r"Object missing required field `(\w+)`", what):
        field = f"{at}.{missing[1]}" if at else missing[1]
        return ConfigError(_joined(path, field), None, "a value: it is required")
    if unknown := re.match(r"Object contains unknown field `([^`]+)`", what):
        field = f"{at}.{unknown[1]}" if at else unknown[1]
        names = _fields_at(at)
        near = near_names(unknown[1], names)
        accepted = f"{' or '.join(near)} (nearest)" if near else f"one of {', '.join(sorted(names))}"
        return ConfigError(_joined(path, field), _value_at(raw, field), f"another field: {accepted}")
    accepted = what.removeprefix("Expected ").split(", got ")[0].replace("`", "")
    return ConfigError(_joined(path, at), _value_at(raw, at), accepted)


def _fields_at(at: str) -> tuple[str, ...]:
    kinds: dict[str, Any] = {"": FleetConfig, "listen": Listen, "supervisor": SupervisorConfig}
    plain = re.sub(r"\[.*?\]", "[]", at)
    kinds |= {"pools[]": Pool, "pools[].layout": Layout}
    kind = kinds.get(plain)
    return kind.__struct_fields__ if kind is not None else ()


def _joined(path: str, at: str) -> str:
    return ".".join(part for part in (path, at) if part) or "the file"


def _value_at(raw: object, at: str) -> object:
    if at.startswith("keys"):
        # Somebody may have written a key where its digest belongs.
        return "(not shown)"
    for step in re.findall(r"[^.\[\]]+", at):
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(raw, list | tuple) and step.isdigit() and int(step) < len(raw):
            raw = raw[int(step)]
        else:
            return None
    return raw


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
