"""Emitted commands: they parse, they carry the plan's own degrees and limits, and name the version they are for."""

import json
import re

import pytest
import yaml
from emit_kit import design_of, option, plan_of, words

from shoal.plan.api import ask
from shoal.plan.emit import TARGETS, emit
from shoal.plan.search import search
from shoal.specs.errors import SpecError


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_names_its_version_and_its_uncertainty(target: str) -> None:
    engine = target if target in ("sglang", "trtllm") else "vllm"
    text = emit(plan_of("llama-3.1-8b", "h100", 20, engine=engine), target)
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
    other = plan_of("deepseek-v3", "h200", 2000, engine="sglang")
    design = next(d for d in other.designs if d.layout.dp == 16 and d.layout.tp == 1 and d.weights.native)
    (sglang, _) = [
        c for c in words(emit(other, "sglang", design=design)) if c[:3] == ["python", "-m", "sglang.launch_server"]
    ]
    assert option(sglang, "--tp-size") == "16"
    assert option(sglang, "--dp-size") == "16"
    assert option(sglang, "--ep-size") == "16"
    assert "--enable-dp-attention" in sglang


def test_split_pools_hand_over() -> None:
    plan = plan_of("llama-3.1-70b", "h200", 200, "only")
    text = emit(plan, "vllm")
    commands = [c for c in words(text) if c[:2] == ["vllm", "serve"]]
    assert len(commands) == 2
    for command in commands:
        assert json.loads(option(command, "--kv-transfer-config") or "")["kv_connector"] == "NixlConnector"
    assert text.count("VLLM_NIXL_SIDE_CHANNEL_HOST=$(hostname -i)") == 2
    plan = plan_of("llama-3.1-70b", "h200", 200, "only", engine="sglang")
    assert plan.best is not None
    text = emit(plan, "sglang")
    assert "--disaggregation-mode prefill" in text
    assert "--disaggregation-mode decode" in text
    router = next(c for c in words(text) if "sglang_router.launch_router" in c)
    assert router.count("--prefill") == plan.best.prefill_replicas
    assert router.count("--decode") == plan.best.replicas
    plan = plan_of("llama-3.1-70b", "h200", 200, "only", engine="trtllm")
    assert plan.best is not None
    front = emit(plan, "trtllm").split("disagg.yaml <<'EOF'\n")[1].split("\nEOF")[0]
    servers = yaml.safe_load(front)
    assert servers["context_servers"]["num_instances"] == plan.best.prefill_replicas
    assert len(servers["generation_servers"]["urls"]) == plan.best.replicas


def test_trtllm_options_file_is_yaml() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50, engine="trtllm")
    design = next(d for d in plan.designs if d.kv_dtype == "fp8" and d.weights.native)
    text = emit(plan, "trtllm", design=design)
    options = yaml.safe_load(text.split("<<'EOF'\n")[1].split("\nEOF")[0])
    assert options["kv_cache_config"]["dtype"] == "fp8"
    assert 0 < options["kv_cache_config"]["free_gpu_memory_fraction"] <= 1
    assert f"--tp_size {design.layout.tp}" in text
    assert f"--max_batch_size {design.sequences}" in text


def test_converted_weights_ask_for_a_checkpoint() -> None:
    plan = plan_of("qwen3-30b-a3b", "rtx_4090", 2)
    design = next(d for d in plan.designs if d.weights.name == "int4")
    text = emit(plan, "vllm", design=design)
    assert "set MODEL" in text
    assert 'vllm serve "$MODEL"' in text
    given = emit(plan, "vllm", design=design, serve_model="me/qwen3-int4")
    assert "vllm serve me/qwen3-int4" in given
    assert "set MODEL" not in given
    for target in ("k8s", "shoal"):
        with pytest.raises(SpecError, match="--serve-model"):
            emit(plan, target, design=design)


def test_weights_that_the_engine_rounds_need_no_checkpoint() -> None:
    plan = plan_of("llama-3.1-70b", "h100", 50)
    design = next(d for d in plan.designs if d.weights.name == "fp8")
    assert "--quantization fp8" in emit(plan, "vllm", design=design)
    other = plan_of("llama-3.1-70b", "h100", 50, engine="trtllm")
    design = next(d for d in other.designs if d.weights.name == "fp8")
    assert "set MODEL" in emit(other, "trtllm", design=design)


@pytest.mark.parametrize(
    ("version", "image", "fraction"),
    [("0.12.0", "vllm/vllm-openai:v0.12.0", "0.9"), ("0.22", "vllm/vllm-openai:v0.22.1", "0.92"),
     (None, "vllm/vllm-openai:v0.33.0", "0.92")],
)  # fmt: skip
def test_the_version_changes_what_is_emitted(version: str | None, image: str, fraction: str) -> None:
    """Fault 2: `--engine-version` changed the memory constants alone."""
    plan = search(
        ask("llama-3.1-8b", gpu=["h100"], users=8, context=4096, weights=["checkpoint"], engine_version=version)
    )
    assert image in emit(plan, "k8s")
    text = emit(plan, "vllm")
    assert f"--gpu-memory-utilization {fraction}\n" in text.replace(" \\", "")
    assert f"vLLM {image.rsplit(':v', 1)[1]};" in text


@pytest.mark.parametrize(
    ("version", "option_name"),
    [("0.5.12", "--cuda-graph-max-bs "), ("0.5.16", "--cuda-graph-max-bs-decode "),
     (None, "--cuda-graph-max-bs-decode ")],
)  # fmt: skip
def test_options_that_were_renamed_follow_the_version(version: str | None, option_name: str) -> None:
    """SGLang 0.5.23's parser calls `--cuda-graph-max-bs` ambiguous."""
    plan = search(ask("llama-3.1-8b", gpu=["h100"], users=8, context=4096, engine="sglang", engine_version=version))
    design = next(d for d in plan.designs if d.weights.native)
    assert option_name in emit(plan, "sglang", design=design)


@pytest.mark.parametrize("written", ["config.json", ""])
@pytest.mark.parametrize("origin", [None, "acme/Heron-8B", "/home/me/heron"])
def test_a_config_is_never_emitted_as_the_model(tmp_path, written: str, origin: str | None) -> None:  # type: ignore[no-untyped-def]
    """Fault 3: the path of a config was the name of the model to serve."""
    folder = tmp_path / "heron"
    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | ({"_name_or_path": origin} if origin else {})))
    model = str(folder / written) if written else str(folder)
    plan = search(ask(model, gpu=["h100"], users=2, context=2048, weights=["checkpoint"]))
    text = emit(plan, "vllm", model)
    assert str(tmp_path) not in text
    if origin == "acme/Heron-8B":
        assert "vllm serve acme/Heron-8B" in text
        assert "acme/Heron-8B" in emit(plan, "k8s", model)
        return
    assert 'vllm serve "$MODEL"' in text
    for target in ("k8s", "shoal"):
        with pytest.raises(SpecError, match="only a config"):
            emit(plan, target, model)
        assert "/models/heron" in emit(plan, target, model, serve_model="/models/heron")
    # With weights beside it, the directory is the model.
    (folder / "model.safetensors").write_bytes(b"")
    assert f"vllm serve {folder}" in emit(plan, "vllm", model)


def test_unknown_and_impossible_targets_are_refused() -> None:
    plan = plan_of("llama-3.1-8b", "h100", 20)
    with pytest.raises(SpecError, match="vllm"):
        emit(plan, "vlm")
    nothing = search(ask("llama-3.1-8b", gpu=["h100"], users=1, context=4096, tpot=1e-6))
    with pytest.raises(SpecError, match="nothing serves"):
        emit(nothing, "vllm")
    for target in ("sglang", "trtllm"):
        with pytest.raises(SpecError, match="the plan runs vllm"):
            emit(plan, target)
    cpu = search(ask("smollm2-135m", gpu=["cpu_2core"], users=2, context=512, tpot=0.5, ttft=20.0))
    with pytest.raises(SpecError, match="the plan runs shoal"):
        emit(cpu, "vllm")
    with pytest.raises(SpecError, match="device plugin"):
        emit(cpu, "k8s")


def test_nothing_is_emitted_for_hardware_that_the_engine_lacks() -> None:
    plan = search(ask("llama-3.1-8b", gpu=["mi300x"], users=20, context=4096, engine="trtllm"))
    assert plan.best is None
    assert re.search("trtllm .* has no kernels for cdna3", plan.rejections[0].detail)
