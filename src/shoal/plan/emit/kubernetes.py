"""Kubernetes: a Deployment for replicas of one server, a LeaderWorkerSet for larger ones, Services, and the volume
for weights. The engine is the plan's: vLLM or SGLang."""

import math

import yaml

from shoal.plan.emit import pods
from shoal.plan.emit.common import Launch, file_model
from shoal.specs.sizes import weight_bytes

Manifest = dict[str, object]
MODELS_PATH, CACHE_PATH = "/models", "/root/.cache/huggingface"


def manifests(launch: Launch) -> str:
    """YAML documents that `kubectl apply -f` reads."""
    target = pods.target_of(launch)
    model = file_model(launch, "k8s")
    local = launch.checkpoint.is_local
    mounted = f"{MODELS_PATH}/{model.rstrip('/').rsplit('/', 1)[-1]}" if local else model
    claim = f"{launch.slug}-weights"
    documents: list[Manifest] = [_claim(launch, claim)]
    for pool in launch.pools:
        name = launch.slug if pool.role == "serve" else f"{launch.slug}-{pool.role}"
        pod = pods.PodContext(launch, pool, target, mounted, claim, MODELS_PATH if local else CACHE_PATH)
        spans = pool.nodes > 1
        documents.append(_group(pod, name) if spans else _deployment(pod, name))
        documents.append(_service(name))
        if pool.replicas > 1:
            documents.append(_budget(name))
    lines = [*launch.header(f"Kubernetes 1.29 and later, {target.label}"), *_notes(launch, model, claim, local)]
    return "\n".join(lines) + "\n" + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)


def _notes(launch: Launch, model: str, claim: str, local: bool) -> list[str]:
    lines = []
    if local:
        lines.append(f"# Copy {model} into the volume of the claim {claim} first.")
    else:
        lines.append("# Weights that need a licence: kubectl create secret generic hf-token --from-literal=token=…")
    unlabelled = [part for part in launch.design.accelerators if pods.product_of(part) is None]
    for accelerator in unlabelled:
        lines.append(f"# No node label of {accelerator.name} is known: add a nodeSelector where nodes differ.")
    if any(pool.nodes > 1 for pool in launch.pools):
        lines.append("# LeaderWorkerSet must be installed (leaderworkerset.x-k8s.io/v1).")
    if any(pods.needs_rdma(launch, pool) for pool in launch.pools):
        lines.append(f"# {pods.RDMA} is what the RDMA device plugin advertises: put your cluster's name there.")
    if launch.design.split:
        lines.append(
            "# In front: a router that knows prefill from decode, with the pods' addresses: `shoal serve`, "
            "llm-d or Dynamo."
        )
    return lines


class _Plain(yaml.SafeDumper):
    """Writes a mapping that stands in two places twice: references read badly in manifests."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _claim(launch: Launch, name: str) -> Manifest:
    """Where weights are kept, read by all pods: half as much again as they take, for a second revision's parts."""
    size = math.ceil(weight_bytes(launch.question.model, launch.design.weights.method).total * 1.5 / 2**30)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{max(1, size)}Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def _deployment(pod: pods.PodContext, name: str) -> Manifest:
    labels = {"app": name}
    spec = {
        "replicas": pod.pool.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pods.pod_spec(pod, pod.pool.layout.world, [])},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def _group(pod: pods.PodContext, name: str) -> Manifest:
    """One LeaderWorkerSet: its groups are the replicas, its pods the servers of one."""
    pool, labels = pod.pool, {"app": name}
    head, worker = pod.target.places(pool)
    spec = {
        "replicas": pool.replicas,
        "leaderWorkerTemplate": {
            "size": pool.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {
                "metadata": {"labels": {**labels, "role": "leader"}},
                "spec": pods.pod_spec(pod, pool.per_node, head),
            },
            "workerTemplate": {
                "metadata": {"labels": {**labels, "role": "worker"}},
                "spec": pods.pod_spec(pod, pool.per_node, worker, serves=False),
            },
        },
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels}, "spec": spec,
    }  # fmt: skip


def _service(name: str) -> Manifest:
    port = {"name": "http", "port": 80, "targetPort": "http"}
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [port]},
    }  # fmt: skip


def _budget(name: str) -> Manifest:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
