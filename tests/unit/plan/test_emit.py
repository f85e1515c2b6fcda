"""Emitted commands and files: they parse, they carry the plan's own degrees, and they name their version."""

import json
import shlex
from functools import lru_cache

import pytest
import yaml

from shoal.plan.api import ask
from shoal.plan.designs import Design, Plan
from shoal.plan.emit import TARGETS, emit
from shoal.plan.search import search
from shoal.specs.errors import SpecError


@lru_cache(maxsize=8)
def plan_of(name: str, gpu: str, users: float, split: str = "never") -> Plan:
    return search(ask(name, gpu=[gpu], users=users, context=4096, split=split))  # type: ignore[arg-type]


def words(text: str) -> list[list[str]]:
    """The commands of a shell text, each split as a shell does."""
    lines = text.replace(" \\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


def option(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def design_of(plan: Plan, **degrees: int) -> Design:
    wanted = {"tp": 1, "pp": 1, "dp": 1, **degrees}
    return next(
        d for d in plan.designs
        if all(getattr(d.layout, axis) == degree for axis, degree in wanted.items()) and d.weights.native
    )  # fmt: skip


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_names_its_version_and_its_uncertainty(target: str) -> None:
    text = emit(plan_of("llama-3.1-8b", "h100", 20), target)
    assert "Written for" in text
    assert "Predicted, not measured" in text


def test_vllm_has_the_degrees_of_the_plan() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50)
    design = design_of(plan, tp=8)
    (command,) = [c for c in words(emit(plan, "vllm", design=design)) if c[:2] == ["vllm", "serve"]]
    assert command[2] == "meta-llama/Llama-3.1-70B"
    assert option(command, "--tensor-parallel-size") == "8"
    assert option(command, "--max-model-len") == "4096"
    assert int(option(command, "--max-num-seqs") or 0) >= design.load
    assert ("--kv-cache-dtype" in command) == (design.kv_dtype == "fp8")
    assert "--pipeline-parallel-size" not in command


def test_vllm_across_servers() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50)
    commands = [
        c for c in words(emit(plan, "vllm", design=design_of(plan, tp=8, pp=2))) if c[:2] == ["vllm", "serve"]
    ]
    assert [option(c, "--node-rank") for c in commands] == ["0", "1"]
    assert all(option(c, "--nnodes") == "2" for c in commands)
    assert "--headless" not in commands[0]
    assert "--headless" in commands[1]


def test_experts_and_attention_data_parallelism() -> None:
    plan = plan_of("deepseek-v3", "h200", 2000)
    design = next(d for d in plan.designs if d.layout.dp == 16 and d.layout.tp == 1 and d.weights.native)
    commands = [c for c in words(emit(plan, "vllm", design=design)) if c[:2] == ["vllm", "serve"]]
    assert len(commands) == 2
    assert all(option(c, "--data-parallel-size") == "16" and "--enable-expert-parallel" in c for c in commands)
    assert option(commands[1], "--data-parallel-start-rank") == "8"
    (sglang, _) = [
        c for c in words(emit(plan, "sglang", design=design)) if c[:3] == ["python", "-m", "sglang.launch_server"]
    ]
    assert option(sglang, "--tp-size") == "16"
    assert option(sglang, "--dp-size") == "16"
    assert option(sglang, "--ep-size") == "16"
    assert "--enable-dp-attention" in sglang


def test_split_pools_hand_over() -> None:
    plan = plan_of("llama-3.1-70b", "h200", 200, "only")
    assert plan.best is not None
    commands = [c for c in words(emit(plan, "vllm")) if c[:2] == ["vllm", "serve"]]
    assert len(commands) == 2
    for command in commands:
        assert json.loads(option(command, "--kv-transfer-config") or "")["kv_connector"] == "NixlConnector"
    text = emit(plan, "sglang")
    assert "--disaggregation-mode prefill" in text
    assert "--disaggregation-mode decode" in text
    router = next(c for c in words(text) if "sglang_router.launch_router" in c)
    assert router.count("--prefill") == plan.best.prefill_replicas
    assert router.count("--decode") == plan.best.replicas
    front = emit(plan, "trtllm").split("disagg.yaml <<'EOF'\n")[1].split("\nEOF")[0]
    servers = yaml.safe_load(front)
    assert servers["context_servers"]["num_instances"] == plan.best.prefill_replicas
    assert len(servers["generation_servers"]["urls"]) == plan.best.replicas


def test_trtllm_options_file_is_yaml() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50)
    design = next(d for d in plan.designs if d.kv_dtype == "fp8" and d.weights.native)
    text = emit(plan, "trtllm", design=design)
    options = yaml.safe_load(text.split("<<'EOF'\n")[1].split("\nEOF")[0])
    assert options["kv_cache_config"]["dtype"] == "fp8"
    assert 0 < options["kv_cache_config"]["free_gpu_memory_fraction"] <= 1
    assert f"--tp_size {design.layout.tp}" in text


def test_manifests_are_valid_and_complete() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 200)
    design = next(d for d in plan.designs if d.layout.world <= 8 and d.replicas > 1 and d.weights.native)
    documents = list(yaml.safe_load_all(emit(plan, "k8s", design=design)))
    kinds = {document["kind"]: document for document in documents}
    assert set(kinds) == {"Deployment", "Service", "PodDisruptionBudget"}
    deployment = kinds["Deployment"]["spec"]
    assert deployment["replicas"] == design.replicas
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": design.layout.world}
    assert container["args"][0] == "meta-llama/Llama-3.1-70B"
    assert all(isinstance(argument, str) for argument in container["args"])
    labels = deployment["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"] == labels == deployment["selector"]["matchLabels"]
    assert ":latest" not in container["image"]


def test_a_replica_of_several_servers_becomes_a_group() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50)
    documents = list(yaml.safe_load_all(emit(plan, "k8s", design=design_of(plan, tp=8, pp=2))))
    group = next(d for d in documents if d["kind"] == "LeaderWorkerSet")
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    (leader,) = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    assert leader["resources"]["limits"] == {"nvidia.com/gpu": 8}
    (worker,) = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    assert "--headless" in worker["args"]
    assert "startupProbe" not in worker


def test_converted_weights_ask_for_a_checkpoint() -> None:
    plan = plan_of("qwen3-30b-a3b", "rtx_4090", 2)
    design = next(d for d in plan.designs if d.weights.name == "int4")
    text = emit(plan, "vllm", design=design)
    assert "set MODEL" in text
    assert 'vllm serve "$MODEL"' in text


def test_shoal_on_a_processor() -> None:
    plan = search(ask("smollm2-135m", gpu=["cpu_2core"], users=2, context=512, tpot=0.5, ttft=20.0))
    assert plan.best is not None
    (command,) = words(emit(plan, "shoal"))
    assert command[:3] == ["shoal", "serve", "smollm2-135m"]
    assert option(command, "--device") == "cpu"
    with pytest.raises(SpecError, match="processor"):
        emit(plan, "vllm")


def test_unknown_and_impossible_targets_are_refused() -> None:
    plan = plan_of("llama-3.1-8b", "h100", 20)
    with pytest.raises(SpecError, match="vllm"):
        emit(plan, "vlm")
    nothing = search(ask("llama-3.1-8b", gpu=["h100"], users=1, context=4096, tpot=1e-6))
    with pytest.raises(SpecError, match="nothing serves"):
        emit(nothing, "vllm")
    with pytest.raises(SpecError, match="NVIDIA"):
        emit(plan_of("llama-3.1-8b", "mi300x", 20), "trtllm")
