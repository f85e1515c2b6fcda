"""Fault 3 of issue 14: emitted manifests are valid for Kubernetes and have all that their pods need to start."""

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml
from emit_kit import design_of, option, plan_of

from shoal.plan.api import ask
from shoal.plan.designs import Design, Plan
from shoal.plan.emit import emit
from shoal.plan.search import search
from shoal.specs.errors import SpecError

VERSION = "1.34"


def documents(plan: Plan, design: Design | None = None, **more: Any) -> list[dict[str, Any]]:
    """The manifests, each valid by the schema of its kind, unknown fields refused."""
    found = list(yaml.safe_load_all(emit(plan, "k8s", design=design, **more)))
    for document in found:
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            for pod in (template["leaderTemplate"], template["workerTemplate"]):
                whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod["spec"]}
                kubernetes_validate.validate(whole, VERSION, strict=True)
        else:
            kubernetes_validate.validate(document, VERSION, strict=True)
    return found


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    specs = []
    for document in found:
        if document["kind"] == "Deployment":
            specs.append(document["spec"]["template"]["spec"])
        elif document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            specs += [template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]]
    return specs


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in pod["containers"][0]["env"]}


def test_manifests_are_complete() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 200)
    design = next(d for d in plan.designs if d.layout.world <= 8 and d.replicas > 1 and d.weights.native)
    kinds = {document["kind"]: document for document in documents(plan, design)}
    assert set(kinds) == {"PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"}
    deployment = kinds["Deployment"]["spec"]
    assert deployment["replicas"] == design.replicas
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": design.layout.world}
    assert container["args"][0] == "meta-llama/Llama-3.1-70B"
    assert option(container["args"], "--max-num-seqs") == str(design.sequences)
    assert all(isinstance(argument, str) for argument in container["args"])
    labels = deployment["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"] == labels == deployment["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("name", "gpu", "engine", "split"),
    [("llama-3.1-8b", "h100", "vllm", "never"), ("llama-3.1-70b", "h200", "vllm", "only"),
     ("llama-3.1-70b", "mi300x", "vllm", "never"), ("qwen3-30b-a3b", "l40s", "vllm", "never"),
     ("deepseek-v3", "h200", "vllm", "only"), ("llama-3.1-70b", "b200", "sglang", "never"),
     ("llama-3.1-70b", "h100", "sglang", "only")],
)  # fmt: skip
def test_every_pod_can_start(name: str, gpu: str, engine: str, split: str) -> None:
    """Image pinned, token, weights, the right nodes, and where pods talk to each other RDMA and addresses."""
    question = ask(
        name, gpu=[gpu], users=300, context=4096, split=split, engine=engine, weights=["checkpoint"],  # type: ignore[arg-type]
        ttft=20.0, tpot=0.2,
    )  # fmt: skip
    plan = search(question)
    kinds: set[str] = set()
    several = [d for d in plan.designs if d.layout.world > d.accelerator.devices_per_node]
    for design in [*plan.designs[:2], *several[:1]]:
        found = documents(plan, design)
        claims = {d["metadata"]["name"] for d in found if d["kind"] == "PersistentVolumeClaim"}
        specs = pods(found)
        kinds |= {d["kind"] for d in found}
        for pod in specs:
            (container,) = pod["containers"]
            tag = container["image"].rpartition(":")[2]
            assert tag not in ("latest", "")
            known = environment(pod)
            assert known["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "hf-token"
            (volume,) = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] == "weights"]
            assert volume in claims
            assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
            assert pod["nodeSelector"]
            across = design.split or any(d["kind"] == "LeaderWorkerSet" for d in found)
            if across and design.accelerator.nic is not None:
                assert container["resources"]["limits"]["rdma/ib"] == 1
                assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
            if design.split and engine == "vllm":
                assert known["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
                args = container.get("args") or container["command"]
                assert any("NixlConnector" in word for word in args)
    assert "Deployment" in kinds


def test_a_replica_of_several_servers_becomes_a_group() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50)
    found = documents(plan, design_of(plan, tp=8, pp=2))
    group = next(d for d in found if d["kind"] == "LeaderWorkerSet")
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    leader, worker = pods(found)
    assert leader["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "--headless" in worker["containers"][0]["args"]
    assert "startupProbe" in leader["containers"][0]
    assert "startupProbe" not in worker["containers"][0]


def test_data_parallel_groups_work_out_their_first_rank() -> None:
    plan = plan_of("deepseek-v3", "h200", 2000)
    design = next(d for d in plan.designs if d.layout.dp == 16 and d.layout.tp == 1 and d.weights.native)
    _, worker = pods(documents(plan, design))
    _, _, text = worker["containers"][0]["command"]
    assert "'--data-parallel-start-rank' $((LWS_WORKER_INDEX * 8))" in text
    assert "--data-parallel-address '$LWS" not in text


def test_weights_of_a_directory_are_mounted(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = search(ask("llama-3.1-8b", gpu=["h100"], users=4, context=4096, weights=["checkpoint"]))
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    found = documents(plan, model=str(tmp_path))
    (pod,) = pods(found)
    assert pod["containers"][0]["args"][0] == f"/models/{tmp_path.name}"
    assert {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]} == {"/dev/shm", "/models"}


@pytest.mark.parametrize(("gpu", "engine"), [("mi300x", "sglang"), ("h100", "trtllm")])
def test_engines_without_a_known_image_are_refused(gpu: str, engine: str) -> None:
    plan = plan_of("llama-3.1-8b", gpu, 4, engine=engine)
    with pytest.raises(SpecError, match="--engine vllm"):
        emit(plan, "k8s")
