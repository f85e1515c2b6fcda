"""LoRA adapters beside Transformers models that have them merged: tokens, logits, batches, layouts, prefixes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.enginekit import assert_greedy, prompts_for, save_engine_checkpoint
from parity.lorakit import ALL_LINEAR, merged, save_adapter
from parity.parallelkit import starting, transformers_logprobs
from parity.tiny import ALL
from shoal import LLM, SamplingParams
from shoal.engine import ops
from shoal.engine.batch import AdapterRows
from shoal.engine.errors import InvalidOption, InvalidRequest
from shoal.engine.layers.linear import RowLinear
from shoal.engine.layers.loading import Span, cutter
from shoal.engine.lora.config import AdapterError
from shoal.engine.lora.update import ActiveRows, LowRankUpdates, stacked
from shoal.engine.models.decoder import DecoderLayer
from shoal.engine.ops.quantized import Scheme
from shoal.engine.parallel.mesh import Mesh

TINY = {tiny.name: tiny for tiny in ALL}
NEW = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
LOGPROBS = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=4)


def engine(path: Path, loras: dict[str, Path], **options: Any) -> LLM:
    options = {"threads": 1, "num_blocks": 200, "block_size": 4} | options
    return LLM(str(path), loras={name: str(found) for name, found in loras.items()}, **options)


def answers(
    llm: LLM, prompts: Sequence[Sequence[int]], lora: str | Sequence[str | None] | None
) -> list[tuple[int, ...]]:
    found = llm.generate(list(prompts), GREEDY, lora=lora, use_tqdm=False)
    return [result.outputs[0].token_ids for result in found]


def assert_prompt_logprobs(llm: LLM, model: Any, prompt: Sequence[int], lora: str | None) -> None:
    """Within 1e-3 of what Transformers gives for every position of the prompt."""
    result = llm.generate([list(prompt)], LOGPROBS, lora=lora, use_tqdm=False)[0]
    assert result.prompt_logprobs is not None
    rows = transformers_logprobs(model, prompt)
    for row, entry in zip(rows, result.prompt_logprobs, strict=False):
        torch.testing.assert_close(torch.tensor(entry.logprobs), row[list(entry.token_ids)], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama-bias", "llama-mqa", "mistral-window", "qwen2", "qwen3", "gemma3"])
def test_an_adapter_is_as_if_merged(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapter = save_adapter(model, tmp_path / "a")
    right, prompts = merged(model, adapter), prompts_for(tiny, 3, NEW)
    with engine(tmp_path, {"a": adapter}) as llm:
        found, base = answers(llm, prompts, "a"), answers(llm, prompts, None)
        assert_prompt_logprobs(llm, right, prompts[0], "a")
        llm.check()
    for prompt, adapted, plain in zip(prompts, found, base, strict=True):
        assert_greedy(right, prompt, adapted)
        assert_greedy(model, prompt, plain)
    assert found != base


@pytest.mark.parametrize(
    "config",
    [
        {"targets": ("q_proj", "v_proj"), "r": 1, "lora_alpha": 3},
        {"use_rslora": True, "lora_alpha": 5},
        {"rank_pattern": {"layers.1.self_attn.k_proj": 7, "up_proj": 3}, "alpha_pattern": {r".*\.down_proj": 2.5}},
        {"targets": ("down_proj",), "r": 16},
    ],
    ids=["some-modules", "rslora", "patterns", "one-module"],
)
def test_what_the_config_says(config: dict[str, Any], tmp_path: Path) -> None:
    tiny = TINY["llama"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapter = save_adapter(model, tmp_path / "a", **config)
    prompt = prompts_for(tiny, 1, NEW)[0]
    with engine(tmp_path, {"a": adapter}) as llm:
        assert_prompt_logprobs(llm, merged(model, adapter), prompt, "a")


def test_mixed_batches_are_single_ones(tmp_path: Path) -> None:
    """Rows of two adapters and of the base model in the same steps: the same log-probabilities, to the bit."""
    tiny = TINY["llama"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapters = {
        "a": save_adapter(model, tmp_path / "a", seed=1),
        "b": save_adapter(model, tmp_path / "b", seed=2, targets=("q_proj", "down_proj"), r=9),
    }
    prompts = prompts_for(tiny, 6, NEW)
    lora = ["a", None, "b", "a", None, "b"]
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=3)
    with engine(tmp_path, adapters, prefix_caching=False, max_num_batched_tokens=37) as llm:
        mixed = llm.generate(prompts, params, lora=lora, use_tqdm=False)
        for prompt, adapter, together in zip(prompts, lora, mixed, strict=True):
            alone = llm.generate([prompt], params, lora=adapter, use_tqdm=False)[0]
            assert together.outputs[0].logprobs == alone.outputs[0].logprobs
            right = model if adapter is None else merged(model, adapters[adapter])
            assert_greedy(right, prompt, together.outputs[0].token_ids)


def test_steps_of_the_base_model_alone_stay_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only steps with rows of an adapter run op by op."""
    tiny = TINY["llama"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapter = save_adapter(model, tmp_path / "a")
    prompt = prompts_for(tiny, 1, NEW)[0]
    op_by_op: list[bool] = []
    original = DecoderLayer.forward

    def watched(self: DecoderLayer, *arguments: Any) -> torch.Tensor:
        op_by_op.append(True)
        return original(self, *arguments)

    monkeypatch.setattr(DecoderLayer, "forward", watched)
    with engine(tmp_path, {"a": adapter}) as llm:
        answers(llm, [prompt], "a")
        assert op_by_op
        op_by_op.clear()
        answers(llm, [prompt], None)
        assert bool(op_by_op) == (not ops.KERNELS.name.startswith("native"))


def test_cached_prefixes_are_not_shared_between_adapters(tmp_path: Path) -> None:
    tiny = TINY["llama"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapters = {name: save_adapter(model, tmp_path / name, seed=seed) for seed, name in enumerate("ab")}
    prompt = prompts_for(tiny, 1, NEW)[0]
    with engine(tmp_path, adapters) as llm:
        for lora in (None, "a", "b"):
            first = llm.generate([prompt], GREEDY, lora=lora, use_tqdm=False)[0]
            again = llm.generate([prompt], GREEDY, lora=lora, use_tqdm=False)[0]
            assert (first.cached_tokens, again.cached_tokens > 0) == (0, True)
            assert first.outputs[0].token_ids == again.outputs[0].token_ids
            assert_greedy(
                model if lora is None else merged(model, adapters[lora]), prompt, first.outputs[0].token_ids
            )


def test_preempted_sequences_resume_with_their_adapter(tmp_path: Path) -> None:
    tiny = TINY["llama"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapters = {name: save_adapter(model, tmp_path / name, seed=seed) for seed, name in enumerate("ab")}
    prompts = [prompt[:10] for prompt in prompts_for(tiny, 6, NEW)]
    lora = ["a", "b", None, "a", "b", None]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with engine(tmp_path, adapters, num_blocks=30) as llm:
        found = llm.generate(prompts, params, lora=lora, use_tqdm=False)
        assert llm.stats().preemptions > 0
        llm.check()
    for prompt, adapter, result in zip(prompts, lora, found, strict=True):
        right = model if adapter is None else merged(model, adapters[adapter])
        assert_greedy(right, prompt, result.outputs[0].token_ids)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-bias", {"tp": 2}),
        ("llama-mqa", {"tp": 3}),
        ("gemma3", {"pp": 2}),
        ("llama", {"tp": 2, "pp": 2}),
        ("llama", {"dp": 2}),
        ("llama", {"cp": 2}),
    ],
    ids=["tp2", "tp3", "pp2", "tp2pp2", "dp2", "cp2"],
)
def test_layouts(name: str, layout: dict[str, int], tmp_path: Path) -> None:
    """Shards of A and B: what one rank answers, in batches of adapters and base model."""
    tiny = TINY[name]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapters = {
        "a": save_adapter(model, tmp_path / "a", seed=1),
        "b": save_adapter(model, tmp_path / "b", seed=2, targets=("k_proj", "o_proj", "up_proj"), r=5),
    }
    prompts = prompts_for(tiny, 4, NEW)
    lora = ["a", None, "b", "a"]
    with starting(as_users_do=False), engine(tmp_path, adapters, **layout) as llm:
        found = answers(llm, prompts, lora)
        llm.check()
    for prompt, adapter, answer in zip(prompts, lora, found, strict=True):
        assert_greedy(model if adapter is None else merged(model, adapters[adapter]), prompt, answer)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_on_a_quantized_base(quantize: str, tmp_path: Path) -> None:
    """The adapter keeps its precision: far nearer to the merged model than to the base."""
    tiny = TINY["llama-bias"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapter = save_adapter(model, tmp_path / "a", strength=0.2)
    prompt = prompts_for(tiny, 1, NEW)[0]

    def distance(lora: str | None, right: Any) -> float:
        result = llm.generate([prompt], LOGPROBS, lora=lora, use_tqdm=False)[0]
        assert result.prompt_logprobs is not None
        rows = zip(transformers_logprobs(right, prompt), result.prompt_logprobs, strict=False)
        gaps = [abs(entry.logprobs[0] - float(row[entry.token_ids[0]])) for row, entry in rows]
        return sum(gaps) / len(gaps)

    right = merged(model, adapter)
    with engine(tmp_path, {"a": adapter}, quantize=quantize) as llm:
        lost = distance(None, model)
        assert distance("a", right) < 2 * lost
        assert distance("a", model) > 2 * distance("a", right)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_quantized_product_gets_the_update_in_full_precision(scheme: Scheme) -> None:
    """What an adapter adds is scale · B (A x), also where the activation is a part of the product."""
    torch.manual_seed(0)
    cpu, active = torch.device("cpu"), ActiveRows()
    down = RowLinear(Span.all(64), 32, False, torch.float32, cpu, Mesh.single().tp)
    down.quantize(scheme)
    for name, target in down.targets("down_proj").items():
        target.fill(name, (32, 64), cutter(torch.randn(32, 64)))
    gate_up, a, b = torch.randn(5, 128), torch.randn(3, 64), torch.randn(32, 3)
    base = down.forward_gated(gate_up, "silu")
    down.lora = LowRankUpdates(active)
    down.lora.install(1, stacked([(0, a, b)]))
    assert torch.equal(down.forward_gated(gate_up, "silu"), base)
    active.rows = (AdapterRows(1, torch.tensor([0, 3])),)
    added = down.forward_gated(gate_up, "silu") - base
    x = torch.nn.functional.silu(gate_up[:, :64]) * gate_up[:, 64:]
    right = torch.where(torch.tensor([1, 0, 0, 1, 0], dtype=torch.bool)[:, None], x @ a.T @ b.T, 0)
    torch.testing.assert_close(added, right, atol=1e-4, rtol=1e-4)


def test_weights_of_lower_precision(tmp_path: Path) -> None:
    """Adapters are mostly published in bfloat16."""
    tiny = TINY["llama"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapter = save_adapter(model, tmp_path / "a")
    file = adapter / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    exact = {name: tensor.float() for name, tensor in load_file(file).items()}
    with engine(tmp_path, {"a": adapter}) as llm:
        save_file(exact, file)
        assert_prompt_logprobs(llm, merged(model, adapter), prompts_for(tiny, 1, NEW)[0], "a")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "bias"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"r": 5000}, "expected 1 to 1024"),
        ({"r": "four"}, "not readable"),
        ({"rank_pattern": {"(": 3}}, "not readable"),
        ({"r": 6}, "has shape .* expected"),
    ],
)
def test_configs_that_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = save_engine_checkpoint(TINY["llama"], tmp_path)
    adapter = save_adapter(model, tmp_path / "a")
    settings = json.loads((adapter / "adapter_config.json").read_text()) | config
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(AdapterError, match=message) as caught:
        engine(tmp_path, {"some": adapter})
    assert "'some'" in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"base_model.model.model.embed_tokens.weight": (211, 48)}, "embeddings and whole modules"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": (4, 211)}, "embeddings and whole modules"),
        ({"base_model.model.lm_head.lora_A.weight": (4, 48)}, "it updates lm_head, which .* it adapts down_proj"),
        ({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": (4, 48)}, "of 3 layers"),
        ({"base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight": (4, 48)}, "doesn't adapt"),
        ({"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": (4, 48)}, "has no lora_B"),
        ({}, "no tensors"),
    ],
)
def test_tensors_that_are_refused(tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path) -> None:
    model = save_engine_checkpoint(TINY["llama"], tmp_path)
    adapter = save_adapter(model, tmp_path / "a")
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=message):
        engine(tmp_path, {"a": adapter})


def test_an_expert_model_takes_adapters_of_its_attention_only(tmp_path: Path) -> None:
    tiny = TINY["mixtral"]
    model = save_engine_checkpoint(tiny, tmp_path)
    adapter = save_adapter(model, tmp_path / "a", targets=("q_proj", "o_proj"))
    prompt = prompts_for(tiny, 1, NEW)[0]
    with engine(tmp_path, {"a": adapter}) as llm:
        assert_prompt_logprobs(llm, merged(model, adapter), prompt, "a")


def test_files_that_are_missing(tmp_path: Path) -> None:
    model = save_engine_checkpoint(TINY["llama"], tmp_path)
    with pytest.raises(AdapterError, match="not a directory"):
        engine(tmp_path, {"a": tmp_path / "nowhere"})
    adapter = save_adapter(model, tmp_path / "a")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(AdapterError, match="pickle"):
        engine(tmp_path, {"a": adapter})
    (adapter / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(AdapterError, match="not a safetensors file"):
        engine(tmp_path, {"a": adapter})
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(AdapterError, match=r"no adapter_config\.json"):
        engine(tmp_path, {"a": adapter})


def test_names(tmp_path: Path) -> None:
    model = save_engine_checkpoint(TINY["llama"], tmp_path)
    adapter = save_adapter(model, tmp_path / "a", targets=ALL_LINEAR)
    with pytest.raises(InvalidOption, match="not the model itself"):
        engine(tmp_path, {"m": adapter}, served_name="m")
    with pytest.raises(InvalidOption, match="without white space"):
        engine(tmp_path, {"a b": adapter})
    with (
        engine(tmp_path, {"a": adapter}) as llm,
        pytest.raises(InvalidRequest, match=r"lora='b'.*expected one of a"),
    ):
        answers(llm, [[5, 6]], "b")
