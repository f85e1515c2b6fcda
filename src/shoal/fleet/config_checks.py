"""What no field of `fleet.yaml` can know alone."""

import dataclasses
import os
import re
from typing import Any
from urllib.parse import urlsplit

from shoal.engine.errors import InvalidOption
from shoal.engine.options import EngineOptions
from shoal.fleet.config import ConfigError, FleetConfig, Pool, SharedConfig
from shoal.fleet.config_errors import check_known, convert
from shoal.fleet.weights import weights_of
from shoal.specs.layout import AXES

POOL_FIELDS = frozenset({"model", "served_name", "threads", *AXES})
"""Of `EngineOptions`: said of a pool itself, and so not among its `options`."""
_MAX_NUMBER = 1e12
_ABOVE_ZERO = frozenset(
    [
        "check_seconds",
        "check_timeout",
        "failures",
        "successes",
        "hang_seconds",
        "straggler_ratio",
        "straggler_return",
        "straggler_seconds",
        "consecutive",
        "at_least",
        "window_seconds",
        "open_seconds",
        "open_seconds_max",
        "probes",
        "prefill_seconds",
        "index_blocks",
        "index_seconds",
        "session_bound",
        "max_wait",
    ]
)


def engine_options(pool: Pool) -> EngineOptions:
    """The options of one of Shoal's own replicas. Raises `ConfigError`."""
    layout: dict[str, object] = {axis: getattr(pool.layout, axis) for axis in AXES}
    fixed = {"model": pool.model, "served_name": pool.models[0], "threads": pool.threads, **layout}
    check_known(pool.options, set(EngineOptions.__struct_fields__) - POOL_FIELDS, "options")
    options: EngineOptions = convert({**fixed, **pool.options}, EngineOptions, "options")
    try:
        options.validate()
    except InvalidOption as error:
        place = "layout" if error.field in layout else "options"
        raise ConfigError(f"{place}.{error.field}", error.value, error.accepted) from None
    return options


def check(config: FleetConfig) -> None:
    """Raise `ConfigError` for the first thing that can't work."""
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
    _check_keys(config)
    _check_numbers(config)
    if config.shared is not None:
        _check_shared(config.shared, config.pools)
    _check_roles(config.pools)
    _check_weights(config.pools)
    for place, text in enumerate(config.gateway.redact):
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"gateway.redact[{place}]", text, f"a regular expression ({error})") from None


def _check_keys(config: FleetConfig) -> None:
    names = [key.name for key in config.keys]
    digests = [key.sha256 for key in config.keys]
    served = {model for pool in config.pools for model in pool.served_names}
    for place, key in enumerate(config.keys):
        if names.index(key.name) != place:
            raise ConfigError(f"keys[{place}].name", key.name, "a name that no other key has")
        if (first := digests.index(key.sha256)) != place:
            raise ConfigError(f"keys[{place}].sha256", "(not shown)", f"another key than that of {names[first]}")
        for model in key.models or ():
            if model not in served:
                raise ConfigError(f"keys[{place}].models", model, f"one of {', '.join(sorted(served))}")


def _check_shared(shared: SharedConfig, pools: tuple[Pool, ...]) -> None:
    accepted = "redis://host:port/0, rediss://host:port/0 or unix:///path/to/socket"
    try:
        parts = urlsplit(shared.redis)
        place = parts.path if parts.scheme == "unix" else parts.hostname
        good = parts.scheme in ("redis", "rediss", "unix") and bool(place)
        secret = parts.password is not None
    except ValueError:
        good = secret = False
    if secret:
        raise ConfigError(
            "shared.redis", "(not shown)", "a URL without a password; password_env names its variable"
        )
    if not good:
        raise ConfigError("shared.redis", shared.redis, accepted)
    if shared.password_env is not None and shared.password_env not in os.environ:
        raise ConfigError("shared.password_env", shared.password_env, "the name of a variable that is set")
    if not any(pool.urls for pool in pools):
        raise ConfigError("shared", shared.redis, "a pool with urls: no other gateway knows what is started here")


def _check_numbers(config: FleetConfig) -> None:
    """Sections that policies share with other programs don't bound every number themselves."""
    for section in ("router", "admission", "health", "breaker", "gateway"):
        value: Any = getattr(config, section)
        for field in dataclasses.fields(value):
            number = getattr(value, field.name)
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            most = 1.0 if field.name.endswith("share") else _MAX_NUMBER
            if field.name in _ABOVE_ZERO and not 0 < number <= most:
                raise ConfigError(f"{section}.{field.name}", number, f"a number above 0 and up to {most:g}")
            if not 0 <= number <= most:
                raise ConfigError(f"{section}.{field.name}", number, f"a number from 0 to {most:g}")


def _check_pool(pool: Pool) -> None:
    if pool.role != "both":
        _check_split(pool)
    if pool.engine == "openai" and not pool.urls:
        raise ConfigError("urls", None, "at least one URL: an engine of kind openai can't be started here")
    for name, schemes in (("urls", ("http", "https")), ("kv_events_urls", ("tcp",))):
        for place, url in enumerate(getattr(pool, name)):
            _check_url(f"{name}[{place}]", url, schemes)
            if (first := getattr(pool, name).index(url)) != place:
                raise ConfigError(f"{name}[{place}]", url, f"another URL than that of {name}[{first}]")
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
    if pool.engine == "shoal" and pool.ranks > 1:
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
