"""A model's own sampling defaults: what its publisher recommends where a request says nothing.

`generation_config.json` beside safetensors, `general.sampling.*` in a GGUF file (llama.cpp's keys).
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.engine.sampling.params import SamplingParams
from shoal.engine.sampling.validate import MAX_TEMPERATURE, REPETITION_PENALTY_RANGE

log = logging.getLogger("shoal.engine")

_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_RANGES = {
    "temperature": (0.0, MAX_TEMPERATURE),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": REPETITION_PENALTY_RANGE,
    "max_new_tokens": (1, 2**31 - 1),
}


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """None: the model recommends nothing, and `SamplingParams`' own default holds."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    """Tokens of an answer to a conversation that sets no limit."""

    def fields(self) -> dict[str, Any]:
        """Those of `SamplingParams` that the model sets."""
        names = (name for name in self.__struct_fields__ if name != "max_new_tokens")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def params(self) -> SamplingParams:
        """Parameters for callers who give none."""
        return SamplingParams(**self.fields())


def read_generation_config(folder: Path) -> SamplingDefaults:
    """The defaults in a model directory's `generation_config.json`; none where it is absent or broken."""
    path = folder / "generation_config.json"
    try:
        values = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s is ignored: %s", path, error)
        return SamplingDefaults()
    return _checked(values, str(path))


def gguf_sampling_defaults(values: Mapping[str, Any], path: Path) -> SamplingDefaults:
    """The defaults in the metadata of a GGUF file."""
    return _checked({name: values[key] for key, name in _GGUF_KEYS.items() if key in values}, str(path))


def _checked(values: Mapping[str, Any], where: str) -> SamplingDefaults:
    """Only values that requests could have: a recommendation that can't be followed must not refuse everybody."""
    kept: dict[str, Any] = {}
    for name, (low, high) in _RANGES.items():
        value = values.get(name)
        if value is None:
            continue
        whole = name in ("top_k", "max_new_tokens")
        number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or (name == "top_p" and value == 0):
            log.warning("%s: %s = %r is ignored; expected %g to %g", where, name, value, low, high)
            continue
        kept[name] = value if whole else float(value)
    return SamplingDefaults(**kept)
