"""LoRA adapters in PEFT's format with random numbers, and the Transformers model that has one merged into it."""

import copy
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

PREFIX = "base_model.model."
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(
    model: Any,
    directory: Path,
    *,
    seed: int = 0,
    targets: tuple[str, ...] = ALL_LINEAR,
    r: int = 4,
    strength: float = 0.3,
    **config: Any,
) -> Path:
    """Write an adapter for a Transformers model, of which every targeted matrix gets an A and a B."""
    generator = torch.Generator().manual_seed(seed)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": r,
        "lora_alpha": 8,
        "target_modules": list(targets),
        "bias": "none",
        "use_dora": False,
        "init_lora_weights": True,
        **config,
    }
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in targets:
            rank = _matching(settings.get("rank_pattern"), name, r)
            down, up = (rank, module.in_features), (module.out_features, rank)
            tensors[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(down, generator=generator) * strength
            tensors[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(up, generator=generator) * strength
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return directory


def _matching(patterns: Mapping[str, Any] | None, name: str, default: Any) -> Any:
    return next((v for p, v in (patterns or {}).items() if re.match(rf"(.*\.)?({p})$", name)), default)


def merged(model: Any, directory: Path) -> Any:
    """A copy of the model whose weights are W + scale · B A."""
    from safetensors.torch import load_file

    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    changed = copy.deepcopy(model)
    for name, module in changed.named_modules():
        down = tensors.get(f"{PREFIX}{name}.lora_A.weight")
        if down is None:
            continue
        up = tensors[f"{PREFIX}{name}.lora_B.weight"]
        rank = _matching(config.get("rank_pattern"), name, config["r"])
        alpha = _matching(config.get("alpha_pattern"), name, config["lora_alpha"])
        scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
        with torch.no_grad():
            module.weight += scale * up @ down
    return changed
