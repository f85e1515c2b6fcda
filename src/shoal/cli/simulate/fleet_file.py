"""A fleet out of a `fleet.yaml`, whose pools say what they run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cli.simulate.machines import Made, fact, planned, replicas_of, router_of
from shoal.cli.simulate.options import Replicas
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.fleet.config import Pool
    from shoal.sim import ReplicaSpec
    from shoal.sim.hardware import PlannedReplica

_PLANNED = ("shoal", "vllm", "sglang")
"""Engines whose memory the planner knows under their name; of others, memory and times are taken for vLLM's."""


def configured_fleet(path: Path, options: Replicas) -> Made:
    """The fleet that `shoal serve --config` would serve; options go before what the file says of every pool."""
    from shoal.fleet.config_file import load_config
    from shoal.policy.restarts import RestartConfig
    from shoal.policy.split import SplitConfig
    from shoal.sim import SimulatedFleet

    config = load_config(path)
    if options.model is not None:
        raise SpecError("model", options.model, f"nothing beside {path}: the file says it, as pools[].model")
    specs: list[ReplicaSpec] = []
    facts: list[tuple[str, str]] = [("config", str(path))]
    notes: list[str] = []
    for number, pool in enumerate(config.pools):
        where = f"{path}: pools[{number}]"
        made, given = _pool(pool, options, where)
        specs += replicas_of(
            made,
            pool.count if options.replicas is None else options.replicas,
            given,
            prefix=f"{pool.name}-",
            models=frozenset(pool.served_names),
            pool=pool.name,
            role=pool.role,
        )
        _, text = fact(pool.count if options.replicas is None else options.replicas, made, given)
        facts.append((f"pool {pool.name}", text))
        notes += made.deviations
    gateway, supervisor = config.gateway, config.supervisor
    fleet = SimulatedFleet(
        replicas=tuple(specs),
        router=router_of(options.router, config.router),
        admission=config.admission,
        breaker=config.breaker,
        health=config.health,
        retry=config.gateway_config().retry_config(),
        restart=RestartConfig(**{f: getattr(supervisor, f) for f in RestartConfig.__struct_fields__}),
        split=SplitConfig(threshold_tokens=gateway.split_threshold_tokens, prefill_seconds=gateway.prefill_seconds),
        continues=gateway.continuation,
        first_byte=gateway.first_byte_seconds,
        stall=gateway.stall_seconds,
        down=gateway.down_seconds,
    )
    return Made(fleet, (*facts, ("router", fleet.router.policy)), notes=tuple(dict.fromkeys(notes)))


def _pool(pool: Pool, options: Replicas, where: str) -> tuple[PlannedReplica, Replicas]:
    hardware = pool.hardware
    gpu = options.gpu or (hardware.gpu if hardware is not None else None)
    if gpu is None:
        accepted = "the accelerator of its replicas: `hardware: {gpu: h100}` in the file, or --gpu for all pools"
        raise SpecError(f"{where}.hardware", None, accepted)
    layout = " ".join(f"{axis}={degree}" for axis, degree in _degrees(pool).items()) or "tp=1"
    given = replace(
        options,
        model=(hardware.model if hardware is not None else None) or pool.model,
        gpu=gpu,
        layout=options.layout or layout,
        engine=options.engine or (pool.engine if pool.engine in _PLANNED else "vllm"),
        weights=options.weights or (hardware.weights if hardware is not None else None),
        max_inflight=options.max_inflight or pool.max_inflight,
    )
    settings = _own_settings(pool) if pool.engine == "shoal" and not pool.urls else _other_settings(pool, where)
    given = replace(given, **{k: v for k, v in settings.items() if getattr(given, k) is None and v is not None})
    try:
        return planned(given, "llamacpp" if pool.engine == "llamacpp" else None), given
    except SpecError as error:
        raise SpecError(f"{where}: {error.field}", error.value, error.accepted) from None


def _degrees(pool: Pool) -> Mapping[str, int]:
    from shoal.specs.layout import AXES

    return {axis: getattr(pool.layout, axis) for axis in AXES if getattr(pool.layout, axis) > 1}


def _own_settings(pool: Pool) -> dict[str, Any]:
    """The engine options of one of Shoal's own replicas, by the names of the command's options."""
    from shoal.fleet.config_checks import engine_options

    own = engine_options(pool)
    return {
        "max_num_seqs": own.max_num_seqs,
        "max_num_batched_tokens": own.max_num_batched_tokens,
        "max_model_len": own.max_model_len,
        "block_size": own.block_size,
        "kv_blocks": own.num_blocks,
        "kv_dtype": "int8" if own.kv_dtype == "int8" else None,
        "weights": "bf16" if own.dtype == "bfloat16" else None,
    }


_NAMES = {
    "max_num_seqs": ("max_num_seqs", "max_running_requests"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "chunked_prefill_size"),
    "max_model_len": ("max_model_len", "context_length"),
    "block_size": ("block_size", "page_size"),
    "kv_blocks": ("num_gpu_blocks_override",),
    "kv_dtype": ("kv_cache_dtype",),
    "memory_utilization": ("gpu_memory_utilization", "mem_fraction_static"),
}
"""Our options, and what vLLM and SGLang call them."""


def _other_settings(pool: Pool, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ours, theirs in _NAMES.items():
        value = next((pool.options[name] for name in theirs if name in pool.options), None)
        if value in (None, "auto"):
            continue
        kind: type[Any] = {"kv_dtype": str, "memory_utilization": float}.get(ours, int)
        try:
            found[ours] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            raise SpecError(f"{where}.options", {ours: value}, "a number") from None
    return found
