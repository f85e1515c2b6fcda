"""Memory predicted before a start-up against what vLLM reported after it, ten times on an 80 GB H100."""

import csv
from pathlib import Path

import pytest

from shoal.plan.memory import ReplicaMemory, replica_memory
from shoal.specs.catalog import load_catalog
from shoal.specs.layout import Layout
from shoal.specs.load import load_model_spec

DATA = Path(__file__).parents[3].parent / "shared" / "data"
ROWS = DATA / "measured" / "vllm-memory.csv"
GIB = 2**30
# The checkpoint's config, and its storage where the config given is of the unquantized original.
CHECKPOINTS = {
    "openai/gpt-oss-20b": ("openai--gpt-oss-20b", None),
    "openai/gpt-oss-120b": ("openai--gpt-oss-120b", None),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": ("meta-llama--Meta-Llama-3.1-70B", "fp8_channel"),
    "meta-llama/Llama-3.1-8B-Instruct": ("meta-llama--Meta-Llama-3.1-8B", None),
    "Qwen/Qwen3-0.6B": ("Qwen--Qwen3-0.6B", None),
    "Qwen/Qwen3-32B": ("Qwen--Qwen3-32B", None),
    "deepseek-ai/DeepSeek-R1": ("deepseek-ai--DeepSeek-R1", None),
}


def rows() -> list[dict[str, str]]:
    if not ROWS.is_file():
        return []
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def ident(row: dict[str, str]) -> str:
    return f"{row['model'].split('/')[1]}-tp{row['tp']}-{row['max_model_len']}"


def utilization(row: dict[str, str]) -> float:
    """The utilization a start-up ran with: what its own parts add up to, to the nearest 0.05.

    vLLM hands out exactly utilization x total, so the parts it logs name the setting, whatever the table's column
    says. One row (gpt-oss-120b) is listed under 0.9, but its parts add up to 0.950.
    """
    parts = ("weights_gib", "peak_activation_gib", "non_torch_gib", "kv_cache_gib")
    if any(not row[part] for part in parts):
        return float(row["gpu_memory_utilization"])
    share = sum(float(row[part]) for part in parts) / float(row["gpu_total_gib"])
    assert share == pytest.approx(round(share * 20) / 20, abs=0.0005), "the parts do not add up to any setting"
    return round(share * 20) / 20


def predicted(row: dict[str, str]) -> ReplicaMemory:
    config, storage = CHECKPOINTS[row["model"]]
    path = DATA / "model-configs" / f"{config}.json"
    if not path.is_file():
        pytest.skip(f"the published config {path.name} is not here")
    return replica_memory(
        load_model_spec(path),
        Layout(tp=int(row["tp"])),
        float(row["gpu_total_gib"]) * GIB,
        load_catalog().engine("vllm", "0.11"),
        quantization=storage,
        fraction=utilization(row),
    )


pytestmark = pytest.mark.skipif(not ROWS.is_file(), reason="the measured start-ups are not here")


@pytest.mark.parametrize("row", [r for r in rows() if r["ok"] == "1"], ids=ident)
def test_a_start_that_succeeded(row: dict[str, str]) -> None:
    memory = predicted(row)
    device = memory.worst
    assert device.weights / GIB == pytest.approx(float(row["weights_gib"]), rel=0.02)
    assert device.kv_room / GIB == pytest.approx(float(row["kv_cache_gib"]), rel=0.05)
    assert device.activation / GIB == pytest.approx(float(row["peak_activation_gib"]), abs=0.03)
    assert device.runtime / GIB == pytest.approx(float(row["non_torch_gib"]), abs=0.02)
    assert memory.verdict(int(row["max_model_len"])) == "fits"


@pytest.mark.parametrize("row", [r for r in rows() if r["ok"] == "0"], ids=ident)
def test_a_start_that_failed(row: dict[str, str]) -> None:
    memory = predicted(row)
    assert memory.verdict(int(row["max_model_len"])) != "fits"
    if row["weights_gib"]:
        assert memory.worst.weights / GIB == pytest.approx(float(row["weights_gib"]), rel=0.02)


def test_reasons_of_the_failures() -> None:
    reasons = {ident(row): predicted(row).verdict(int(row["max_model_len"])) for row in rows() if row["ok"] == "0"}
    assert reasons == {
        "Llama-3.3-70B-Instruct-FP8-dynamic-tp1-16000": "no room for KV",
        "Qwen3-32B-tp1-32000": "context does not fit",
        "DeepSeek-R1-tp1-16000": "weights do not fit",
    }


def test_gpt_oss_120b_would_not_start_at_the_utilization_its_row_is_listed_under() -> None:
    row = next(r for r in rows() if r["model"] == "openai/gpt-oss-120b")
    assert utilization(row) == 0.95
    config = DATA / "model-configs" / "openai--gpt-oss-120b.json"
    memory = replica_memory(
        load_model_spec(config),
        Layout(),
        float(row["gpu_total_gib"]) * GIB,
        load_catalog().engine("vllm", "0.11"),
        fraction=0.9,
    )
    assert memory.verdict(16_000) == "no room for KV"


def test_an_rtx_4090_that_no_constant_was_fitted_to() -> None:
    """LLMServingSim's replay of Llama-3.1-8B through vLLM 0.19 logs 41,408 tokens of KV."""
    path = DATA / "model-configs" / "meta-llama--Meta-Llama-3.1-8B.json"
    if not path.is_file():
        pytest.skip(f"the published config {path.name} is not here")
    device = load_catalog().accelerator("RTX4090").device_bytes
    memory = replica_memory(load_model_spec(path), Layout(), device, load_catalog().engine("vllm", "0.19.0"))
    assert memory.max_context() == pytest.approx(41_408, rel=0.05)
    assert memory.verdict(32_768) == "fits"
