"""PEFT's adapter_config.json: what of it changes the computation, and what the engine doesn't compute.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.engine.errors import EngineError

T = TypeVar("T")

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_RANK = 1024
_PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initialisations of A and B. Others change the base model's weights too, which the adapter's file doesn't hold."""


class AdapterError(EngineError):
    """An adapter that cannot be used: says which, what was found and what is accepted."""

    def __init__(self, name: str, message: str, file: Path | None = None) -> None:
        where = f" ({file})" if file is not None else ""
        super().__init__(f"LoRA adapter {name!r}{where}: {message}")


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of adapter_config.json that this engine looks at; PEFT's defaults. Others are ignored."""

    peft_type: str = "LORA"
    r: int = 8
    lora_alpha: float = 8.0
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: str = "none"
    lora_bias: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str | None = True
    layer_replication: Any = None
    trainable_token_indices: Any = None
    target_parameters: Any = None
    alora_invocation_tokens: Any = None

    def problems(self) -> Iterator[str]:
        """Features that change the result and that the engine doesn't compute."""
        if self.peft_type.upper() != "LORA":
            yield f"peft_type {self.peft_type!r}; only LORA is computed"
        if self.use_dora:
            yield "use_dora: DoRA's magnitudes are not computed"
        if self.use_qalora:
            yield "use_qalora: grouped inputs are not computed"
        if self.bias != "none" or self.lora_bias:
            yield f"bias {self.bias!r}, lora_bias {self.lora_bias}; only adapters without biases are computed"
        if self.modules_to_save:
            yield f"modules_to_save {self.modules_to_save}: whole modules are not replaced, only updated by A and B"
        if self.init_lora_weights not in _PLAIN_INITS:
            yield (
                f"init_lora_weights {self.init_lora_weights!r} changes the base model's weights; "
                "convert the adapter to a plain LoRA with PEFT's path_initial_model_for_weight_conversion"
            )
        for field in (
            "layer_replication",
            "trainable_token_indices",
            "target_parameters",
            "alora_invocation_tokens",
        ):
            if getattr(self, field):
                yield f"{field} is set, which is not computed"

    def rank(self, module: str) -> int:
        """r of a module, by PEFT's name of it (`model.layers.0.self_attn.q_proj`)."""
        return _of_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """What B (A x) of a module is multiplied by."""
        alpha, rank = _of_pattern(self.alpha_pattern, module, self.lora_alpha), self.rank(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def _of_pattern(patterns: Mapping[str, T] | None, module: str, default: T) -> T:
    """The value of the first pattern that is the module's name or the end of it, as PEFT matches."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def read_config(name: str, directory: Path) -> AdapterConfig:
    """The configuration of an adapter in a directory. Raises AdapterError for what cannot be used."""
    file = directory / CONFIG_FILE
    if not directory.is_dir():
        raise AdapterError(name, f"{str(directory)!r} is not a directory; expected one with {CONFIG_FILE}")
    try:
        config = msgspec.json.decode(file.read_bytes(), type=AdapterConfig)
        _check_patterns(config)
    except FileNotFoundError:
        raise AdapterError(name, f"no {CONFIG_FILE} in {str(directory)!r}") from None
    except (OSError, msgspec.MsgspecError, re.error) as error:
        raise AdapterError(name, f"not readable: {error}", file) from error
    if problems := list(config.problems()):
        raise AdapterError(name, "; ".join(problems), file)
    ranks = [config.r, *(config.rank_pattern or {}).values()]
    if any(not 1 <= rank <= MAX_RANK for rank in ranks):
        raise AdapterError(name, f"ranks {sorted(set(ranks))}; expected 1 to {MAX_RANK}", file)
    return config


def _check_patterns(config: AdapterConfig) -> None:
    for pattern in (*(config.rank_pattern or {}), *(config.alpha_pattern or {})):
        re.compile(pattern)


def adapter_digest(directory: Path) -> str:
    """Name the content of an adapter: SHA-256 of its two files, in hex."""
    digest = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with (directory / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
