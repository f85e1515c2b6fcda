"""`fleet.yaml`: Shoal's gateway before the plan's replicas, which are its own engine's on processors.

Replicas that fit on one server are started by the fleet. Those of a larger plan are attached to by their addresses,
with the command for each server in comments.
"""

import math
import shlex
from collections.abc import Iterator

import yaml

from shoal import __version__
from shoal.plan.emit import sglang, vllm
from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, file_model
from shoal.plan.question import CPU_ENGINE
from shoal.plan.sequences import design_memory
from shoal.specs.errors import SpecError
from shoal.specs.layout import AXES

_OWN = {"HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m", "google/gemma-3-270m": "gemma3-270m"}
"""What `shoal pull` has under a name of its own."""
_HAND_OVER = (CPU_ENGINE, "vllm")
"""Engines whose replicas the gateway can split."""
_BLOCK = 16
_PORTS_PER_REPLICA = 10

PoolEntry = dict[str, object]


def fleet(launch: Launch) -> str:
    """The text of a `fleet.yaml` that `shoal serve --config` serves."""
    own = launch.able.engine == CPU_ENGINE
    if launch.design.split and launch.able.engine not in _HAND_OVER:
        accepted = f"vllm, or a design without a split: Shoal's gateway hands nothing over for {launch.able.engine}"
        raise SpecError("emit", "shoal", accepted)
    model = _model(launch, own)
    devices = sum(pool.layout.world * pool.replicas for pool in launch.pools)
    local = (
        devices <= launch.pools[0].per_node
        and not launch.design.mixed
        and launch.able.engine in (CPU_ENGINE, "vllm", "sglang")
    )
    lines = launch.header(f"Shoal {__version__}" + ("" if own else f" before {launch.able.label}"))
    lines.append(
        "# shoal serve --config FILE; with --check to see what would run. docs/fleet-config.md has every field."
    )
    entries: list[PoolEntry] = []
    for pool in launch.pools:
        if local and own:
            entries.append(_own_pool(launch, pool, model))
        elif local:
            entries += _devices_each(launch, pool, model, first=sum(_devices(entry) for entry in entries))
        else:
            lines += _elsewhere(launch, pool, model, own)
            entries.append(_attached(launch, pool, model))
    content = {"listen": {"host": "127.0.0.1", "port": FIRST_PORT}, "pools": entries}
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, width=110)


def _model(launch: Launch, own: bool) -> str:
    if own:
        # Our engine rounds and widens any checkpoint itself.
        reference = launch.checkpoint.reference
        if reference is None:
            return file_model(launch, "shoal")
        return _OWN.get(reference, reference)
    return file_model(launch, "shoal")


def _pool(launch: Launch, pool: Pool, name: str, model: str) -> PoolEntry:
    """What every entry of a pool says."""
    entry: PoolEntry = {"name": name, "model": model, "engine": launch.able.engine}
    if pool.role != "serve":
        entry["role"] = pool.role
    entry["max_inflight"] = pool.sequences * pool.layout.dp
    return entry


def _layout(pool: Pool) -> dict[str, int]:
    return {axis: getattr(pool.layout, axis) for axis in AXES if getattr(pool.layout, axis) > 1}


def _own_pool(launch: Launch, pool: Pool, model: str) -> PoolEntry:
    """Replicas of Shoal's engine, started by the fleet."""
    entry = _pool(launch, pool, pool.role if pool.role != "serve" else "replica", model)
    entry["replicas"] = pool.replicas
    layout = _layout(pool)
    return {**entry, **({"layout": layout} if layout else {}), "options": engine_options(launch, pool)}


def engine_options(launch: Launch, pool: Pool) -> dict[str, object]:
    """`pools[].options` of Shoal's engine: formats, limits, and the KV memory that the plan counted on."""
    design = launch.design
    found: dict[str, object] = {}
    if design.weights.name in ("int8", "int4"):
        found["quantize"] = design.weights.name
    elif design.weights.name in ("bf16", "bfloat16"):
        found["dtype"] = "bfloat16"
    if design.kv_dtype == "int8":
        found["kv_dtype"] = "int8"
    found["max_model_len"] = launch.context
    found["max_num_seqs"] = pool.sequences
    found["max_num_batched_tokens"] = max(launch.tokens(pool), pool.sequences)
    found["kv_memory"] = _kv_memory(launch, pool)
    return found


def _kv_memory(launch: Launch, pool: Pool) -> int:
    """Bytes per rank for what the plan runs at once, or for the longest request, in whole blocks."""
    held = launch.question.held_tokens
    stages = design_memory(launch.question, launch.design).stages

    def blocks(tokens: float) -> float:
        return math.ceil(tokens / _BLOCK) * _BLOCK

    tokens = max(pool.sequences * blocks(held), blocks(launch.context)) + 2 * _BLOCK
    most = max(stage.curve.constant * pool.sequences + stage.curve.rate * tokens for stage in stages)
    return math.ceil(most / 2**20) * 2**20


def _devices_each(launch: Launch, pool: Pool, model: str, first: int) -> Iterator[PoolEntry]:
    """One pool for each replica of another engine on this server, each on devices of its own."""
    world = pool.layout.world
    for number in range(pool.replicas):
        start = first + number * world
        visible = ",".join(str(device) for device in range(start, start + world))
        variable = "CUDA_VISIBLE_DEVICES" if pool.accelerator.vendor == "NVIDIA" else "HIP_VISIBLE_DEVICES"
        environment = {variable: visible}
        if pool.role != "serve" and launch.able.engine == "vllm":
            # Every rank listens at the port after the one before it.
            port = vllm.SIDE_CHANNEL + start * _PORTS_PER_REPLICA
            environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
        role = pool.role if pool.role != "serve" else "replica"
        entry = _pool(launch, pool, f"{role}-{number}", model)
        layout = _other_layout(launch, pool)
        yield {
            **entry, **({"layout": layout} if layout else {}), "options": _other_options(launch, pool),
            "environment": environment,
        }  # fmt: skip


def _devices(entry: PoolEntry) -> int:
    environment = entry.get("environment")
    if not isinstance(environment, dict):
        return 0
    return len(str(next(iter(environment.values()))).split(","))


def _other_options(launch: Launch, pool: Pool) -> dict[str, object]:
    """Options of another engine, by the names that a pool gives them."""
    options = vllm.engine_options if launch.able.engine == "vllm" else sglang.engine_options
    found = {name.replace("-", "_"): value for name, value in options(launch, pool).items()}
    if launch.able.engine == "sglang" and pool.layout.dp > 1:
        found |= {"dp_size": pool.layout.dp, "enable_dp_attention": True}
    return found


def _other_layout(launch: Launch, pool: Pool) -> dict[str, int]:
    """The layout as another engine's adapter reads it: SGLang's tp counts all ranks of a stage."""
    layout = _layout(pool)
    if launch.able.engine == "sglang" and pool.layout.dp > 1:
        layout["tp"] = pool.layout.tp * layout.pop("dp")
    return layout


def _attached(launch: Launch, pool: Pool, model: str) -> PoolEntry:
    """Replicas that run on other servers, by the addresses to fill in."""
    role = pool.role if pool.role != "serve" else "replica"
    entry = _pool(launch, pool, role, model)
    if launch.able.engine not in (CPU_ENGINE, "vllm", "sglang"):
        entry["engine"] = "openai"
    # The name by which replicas list it.
    entry["model"] = model.rstrip("/").rsplit("/", 1)[-1] if launch.able.engine == CPU_ENGINE else model
    entry["urls"] = [f"http://{role.upper()}-{number}:{FIRST_PORT}" for number in range(pool.replicas)]
    return entry


def _elsewhere(launch: Launch, pool: Pool, model: str, own: bool) -> list[str]:
    """Comment lines: what runs on the other servers."""
    role = pool.role if pool.role != "serve" else "replica"
    if not own:
        return [
            f"# {role.upper()}-…: `--emit {launch.able.engine}` prints their commands; put their addresses below."
        ]
    layout = "".join(f" --{axis} {degree}" for axis, degree in _layout(pool).items())
    options = " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in engine_options(launch, pool).items()
    )
    spans = "" if pool.nodes == 1 else f" --rendezvous env, on each of {pool.nodes} servers (docs/parallel.md)"
    return [
        f"# On {role.upper()}-0 to {role.upper()}-{pool.replicas - 1}, whose addresses go below (open to the "
        "network: give them a key, and name it in api_key_env):",
        f"#   shoal serve {shlex.quote(model)} --host 0.0.0.0{layout} {options}{spans}",
    ]
