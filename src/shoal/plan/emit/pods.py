"""Pods of an engine: its command, image, devices, weights, token, network and probes."""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.plan.emit import sglang, vllm
from shoal.plan.emit.common import FIRST_PORT, Launch, Pool
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator

RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
RDMA = "rdma/ib"
_AMD_PRODUCTS = {"mi300x": "AMD_Instinct_MI300X_OAM"}
START_SECONDS, PERIOD = 3600, 10
_LEADER = "$(LWS_LEADER_ADDRESS)"
_INDEX = "$(LWS_WORKER_INDEX)"

PodSpec = dict[str, object]


@dataclass(frozen=True, slots=True)
class Target:
    """One engine in a container."""

    label: str
    image: str
    command: tuple[str, ...]
    """The program, and what comes before the model."""
    options: Callable[[Launch, Pool], list[str]]
    places: Callable[[Pool], tuple[list[str], list[str]]]
    """What the leader and the workers of a replica of several servers are told."""
    health: str
    listens: tuple[str, ...]
    """Options that every server needs."""


@dataclass(frozen=True, slots=True)
class PodContext:
    """What the pods of one pool are made from."""

    launch: Launch
    pool: Pool
    target: Target
    model: str
    """As the command names it inside the container."""
    claim: str
    mount: str
    """Where the volume with weights is mounted."""


def target_of(launch: Launch) -> Target:
    """The plan's engine as a container. Raises `SpecError` where it has none for this hardware."""
    accelerator, able = launch.design.accelerator, launch.able
    if accelerator.vendor not in RESOURCES or not accelerator.supports("bf16"):
        raise SpecError("emit", "k8s", f"shoal: no device plugin is known for {accelerator.name}")
    image = able.image(accelerator.vendor)
    if image is None or able.engine not in ("vllm", "sglang"):
        raise SpecError(
            "emit", "k8s", f"--engine vllm: no manifest is known for {able.label} on {accelerator.name}"
        )
    if able.engine == "vllm":
        return Target(
            f"vLLM {able.version}", image, ("vllm", "serve"), vllm.options, _vllm_places, "/health",
            ("--port", str(FIRST_PORT)),
        )  # fmt: skip
    start = ("python3", "-m", "sglang.launch_server", "--model-path")
    listens = ("--host", "0.0.0.0", "--port", str(FIRST_PORT))
    return Target(f"SGLang {able.version}", image, start, sglang.options, _sglang_places, "/health", listens)


def _vllm_places(pool: Pool) -> tuple[list[str], list[str]]:
    if pool.layout.dp == 1:
        shared = ["--nnodes", str(pool.nodes), "--node-rank", _INDEX, "--master-addr", _LEADER]
        return shared, [*shared, "--headless"]
    local = max(1, pool.layout.dp // pool.nodes)
    shared = [
        "--data-parallel-size-local", str(local), "--data-parallel-address", _LEADER,
        "--data-parallel-rpc-port", str(vllm.RPC_PORT),
    ]  # fmt: skip
    # Kubernetes substitutes variables but does not calculate, so a shell works out the first rank.
    return shared, [*shared, "--headless", "--data-parallel-start-rank", f"$((LWS_WORKER_INDEX * {local}))"]


def _sglang_places(pool: Pool) -> tuple[list[str], list[str]]:
    shared = [
        "--nnodes", str(pool.nodes), "--node-rank", _INDEX, "--dist-init-addr", f"{_LEADER}:{sglang.INIT_PORT}",
    ]  # fmt: skip
    return shared, shared


def needs_rdma(launch: Launch, pool: Pool) -> bool:
    """The pool's pods talk to other pods over the network: a replica of several servers, or a hand-off."""
    return pool.accelerator.nic is not None and (pool.nodes > 1 or launch.design.split)


def product_of(accelerator: Accelerator) -> tuple[str, str] | None:
    """(node label, value) by which the vendors' label daemons tell this device; None: not known."""
    if accelerator.name in _AMD_PRODUCTS:
        return "amd.com/gpu.product-name", _AMD_PRODUCTS[accelerator.name]
    # NVIDIA's device discovery labels nodes with the driver's name of the card, spaces replaced.
    name = next((alias for alias in accelerator.aliases if alias.startswith("NVIDIA ")), None)
    return None if name is None else ("nvidia.com/gpu.product", name.replace(" ", "-"))


def pod_spec(context: PodContext, devices: int, extra: list[str], serves: bool = True) -> PodSpec:
    """The pod of one server: `devices` of them, `extra` options of its place, probes only where it serves HTTP."""
    launch, pool = context.launch, context.pool
    resource = RESOURCES[pool.accelerator.vendor]
    limits: dict[str, object] = {resource: devices}
    rdma = needs_rdma(launch, pool)
    if rdma:
        limits[RDMA] = 1
    container: dict[str, object] = {
        "name": launch.able.engine,
        "image": context.target.image,
        **_command(context, extra, serves),
        "env": _environment(launch, pool, context.mount),
        "ports": [{"containerPort": port, "name": name} for name, port in _ports(launch, pool)],
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"}, {"name": "weights", "mountPath": context.mount},
        ],
    }  # fmt: skip
    if rdma:
        # RDMA registers memory with the network card, which pins it.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    if serves:
        check = {"httpGet": {"path": context.target.health, "port": "http"}, "periodSeconds": PERIOD}
        container |= {
            "startupProbe": {**check, "failureThreshold": START_SECONDS // PERIOD},
            "readinessProbe": check,
            "livenessProbe": {**check, "failureThreshold": 6},
        }
    product = product_of(pool.accelerator)
    selector = {} if product is None else {"nodeSelector": {product[0]: product[1]}}
    return {
        **selector,
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "terminationGracePeriodSeconds": 120,
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "weights", "persistentVolumeClaim": {"claimName": context.claim}},
        ],
    }


def _ports(launch: Launch, pool: Pool) -> list[tuple[str, int]]:
    ports = [("http", FIRST_PORT)]
    if pool.role != "serve" and launch.able.engine == "vllm":
        ports.append(("nixl", vllm.SIDE_CHANNEL))
    return ports


def _environment(launch: Launch, pool: Pool, mount: str) -> list[dict[str, object]]:
    token = {"name": "hf-token", "key": "token", "optional": True}
    found: list[dict[str, object]] = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}},
        {"name": "HF_HOME", "value": mount},
    ]
    if pool.role != "serve" and launch.able.engine == "vllm":
        # What the other side is told to fetch from: the default, localhost, is right on one machine only.
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        found.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address})
        found.append({"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(vllm.SIDE_CHANNEL)})
    return found


def _command(context: PodContext, extra: list[str], serves: bool) -> dict[str, object]:
    launch, pool, target = context.launch, context.pool, context.target
    words = [word for option in target.options(launch, pool) for word in _words(option)]
    listens = target.listens if serves or launch.able.engine == "sglang" else ()
    arguments = [context.model, *words, *extra, *listens]
    if not any(word.startswith("$((") for word in extra):
        return {"command": list(target.command), "args": arguments}
    quoted = " ".join(word if word.startswith("$") else f"'{word}'" for word in arguments)
    text = f"exec {' '.join(target.command)} " + quoted.replace(_LEADER, "$LWS_LEADER_ADDRESS")
    return {"command": ["sh", "-c", text]}


def _words(option: str) -> list[str]:
    name, _, value = option.partition(" ")
    return [name, value.strip("'")] if value else [name]
