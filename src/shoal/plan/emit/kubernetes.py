"""Kubernetes: a Deployment for replicas of one server, a LeaderWorkerSet for larger ones, and a Service."""

import yaml

from shoal.plan.emit import vllm
from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, converted
from shoal.specs.errors import SpecError

WRITTEN_FOR = "1.29 and later, vLLM " + vllm.WRITTEN_FOR
IMAGES = {"NVIDIA": "vllm/vllm-openai:v0.22.0", "AMD": "rocm/vllm:latest"}
RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
START_SECONDS, PERIOD = 3600, 10

Manifest = dict[str, object]


def manifests(launch: Launch) -> str:
    """YAML documents that `kubectl apply -f` reads."""
    accelerator = launch.design.accelerator
    if accelerator.vendor not in RESOURCES or not accelerator.supports("bf16"):
        raise SpecError("emit", "k8s", f"shoal: no device plugin is known for {accelerator.name}")
    documents: list[Manifest] = []
    for pool in launch.pools:
        name = launch.slug if pool.role == "serve" else f"{launch.slug}-{pool.role}"
        spans = pool.nodes(launch.per_node) > 1
        documents.append(_group(launch, pool, name) if spans else _deployment(launch, pool, name))
        documents.append(_service(name))
        if pool.replicas > 1:
            documents.append(_budget(name))
    lines = launch.header("Kubernetes", WRITTEN_FOR)
    wanted = converted(launch)
    if wanted is not None:
        lines.append(f"# The plan stores weights as {wanted}: replace the model by a checkpoint converted to it.")
    if any(pool.nodes(launch.per_node) > 1 for pool in launch.pools):
        lines.append("# LeaderWorkerSet must be installed (leaderworkerset.x-k8s.io/v1).")
    if IMAGES[accelerator.vendor].endswith(":latest"):
        lines.append(f"# {IMAGES[accelerator.vendor]}: pin the tag that you tested; its options may differ.")
    if launch.design.split:
        lines.append("# A router that knows prefill from decode goes in front (llm-d, Dynamo).")
    return "\n".join(lines) + "\n" + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """Writes a mapping that stands in two places twice: references read badly in manifests."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _deployment(launch: Launch, pool: Pool, name: str) -> Manifest:
    labels = {"app": name}
    spec = {
        "replicas": pool.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(launch, pool, pool.layout.world, [])},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def _group(launch: Launch, pool: Pool, name: str) -> Manifest:
    """One LeaderWorkerSet: its groups are the replicas, its pods the servers of one."""
    nodes, labels = pool.nodes(launch.per_node), {"app": name}
    if pool.layout.dp > 1:
        local = max(1, pool.layout.dp // nodes)
        shared = [
            "--data-parallel-size-local", str(local), "--data-parallel-address", "$(LWS_LEADER_ADDRESS)",
            "--data-parallel-rpc-port", str(vllm.RPC_PORT),
        ]  # fmt: skip
        # Kubernetes substitutes variables but does not calculate, so a shell works out the first rank.
        worker = [*shared, "--headless", "--data-parallel-start-rank", f"$((LWS_WORKER_INDEX * {local}))"]
    else:
        shared = [
            "--nnodes",
            str(nodes),
            "--node-rank",
            "$(LWS_WORKER_INDEX)",
            "--master-addr",
            "$(LWS_LEADER_ADDRESS)",
        ]
        worker = [*shared, "--headless"]
    spec = {
        "replicas": pool.replicas,
        "leaderWorkerTemplate": {
            "size": nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {
                "metadata": {"labels": {**labels, "role": "leader"}},
                "spec": _pod(launch, pool, launch.per_node, shared),
            },
            "workerTemplate": {"spec": _pod(launch, pool, launch.per_node, worker, probes=False)},
        },
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels}, "spec": spec,
    }  # fmt: skip


def _pod(launch: Launch, pool: Pool, devices: int, extra: list[str], probes: bool = True) -> Manifest:
    vendor = launch.design.accelerator.vendor
    words = [word for option in vllm.options(launch, pool) for word in _words(option)]
    arguments = [launch.model, *words, *extra, *(["--port", str(FIRST_PORT)] if probes else [])]
    container: Manifest = {"name": "vllm", "image": IMAGES[vendor]}
    if any(word.startswith("$((") for word in extra):
        quoted = " ".join(word if word.startswith("$") else f"'{word}'" for word in arguments)
        container |= {
            "command": [
                "sh",
                "-c",
                "exec vllm serve " + quoted.replace("$(LWS_LEADER_ADDRESS)", "$LWS_LEADER_ADDRESS"),
            ]
        }
    else:
        container |= {"command": ["vllm", "serve"], "args": arguments}
    container |= {
        "ports": [{"containerPort": FIRST_PORT, "name": "http"}],
        "resources": {"limits": {RESOURCES[vendor]: devices}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if probes:
        check = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PERIOD}
        container |= {
            "startupProbe": {**check, "failureThreshold": START_SECONDS // PERIOD},
            "readinessProbe": check,
            "livenessProbe": {**check, "failureThreshold": 6},
        }
    return {
        "containers": [container],
        "terminationGracePeriodSeconds": 120,
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
    }


def _words(option: str) -> list[str]:
    name, _, value = option.partition(" ")
    return [name, value.strip("'")] if value else [name]


def _service(name: str) -> Manifest:
    port = {"name": "http", "port": 80, "targetPort": "http"}
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [port]},
    }  # fmt: skip


def _budget(name: str) -> Manifest:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
