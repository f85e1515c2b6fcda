"""The model spec of what lies on disk: a directory, a config.json, or a GGUF file."""

import json
from pathlib import Path

from shoal.specs.errors import UnreadableModel
from shoal.specs.gguf_metadata import load_gguf_spec
from shoal.specs.model import ModelSpec
from shoal.specs.parse import parse_config

_CONFIG = "config.json"


def load_model_spec(path: str | Path) -> ModelSpec:
    """The model in a directory with a config.json, in a config.json itself, or in a GGUF file.

    A directory without a config.json but with GGUF files is read by its first GGUF file.

    Raises:
        UnreadableModel: nothing there, not readable, not JSON; or as `parse_config`.
    """
    path = Path(path)
    if path.is_dir():
        if (path / _CONFIG).is_file():
            return _load_json(path / _CONFIG, path.name)
        files = sorted(path.glob("*.gguf"))
        if not files:
            raise UnreadableModel(path, f"neither a {_CONFIG} nor a .gguf file in this directory")
        path = files[0]
    if not path.is_file():
        raise UnreadableModel(
            path, f"no such file; accepted: a directory with {_CONFIG}, a {_CONFIG}, or a .gguf file"
        )
    if path.suffix == ".gguf":
        return load_gguf_spec(path)
    return _load_json(path, path.parent.name if path.name == _CONFIG else path.stem)


def _load_json(path: Path, name: str) -> ModelSpec:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableModel(path, f"can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UnreadableModel(path, f"not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UnreadableModel(path, f"a config must be a JSON object, got {type(config).__name__}")
    spec = parse_config(_with_sidecar(config, path), name)
    return spec


def _with_sidecar(config: dict[str, object], path: Path) -> dict[str, object]:
    """ModelOpt writes the quantization to a file of its own; take it where the config has none."""
    sidecar = path.parent / "hf_quant_config.json"
    if "quantization_config" in config or not sidecar.is_file():
        return config
    try:
        content = json.loads(sidecar.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableModel(sidecar, f"not valid JSON: {error}") from error
    section = content.get("quantization") if isinstance(content, dict) else None
    if not isinstance(section, dict):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **section}}
