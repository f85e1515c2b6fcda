"""The model spec of what lies on disk: a directory, a config.json, or a GGUF file."""

import json
from pathlib import Path

from shoal.specs.errors import UnreadableModel
from shoal.specs.gguf_metadata import load_gguf_spec
from shoal.specs.model import ModelSpec
from shoal.specs.parse import parse_config

_CONFIG = "config.json"
_SIDECAR = "hf_quant_config.json"


def load_model_spec(path: str | Path) -> ModelSpec:
    """The model in a directory with a config.json, in a config.json itself, or in a GGUF file.

    A directory without a config.json but with GGUF files is read by its first GGUF file.

    Raises:
        UnreadableModel: nothing there, not readable, not JSON; or as `parse_config`.
    """
    typed, path = str(path), Path(path)
    if path.is_dir():
        if (path / _CONFIG).is_file():
            return _load_json(path / _CONFIG, path.name)
        files = sorted(path.glob("*.gguf"))
        if not files:
            raise UnreadableModel(path, f"neither a {_CONFIG} nor a .gguf file in this directory")
        path = files[0]
    if not path.is_file():
        raise UnreadableModel(
            typed, f"no such file; accepted: a directory with {_CONFIG}, a {_CONFIG}, or a .gguf file"
        )
    if path.suffix == ".gguf":
        return load_gguf_spec(path)
    return _load_json(path, path.parent.name if path.name == _CONFIG else path.stem)


def parse_config_text(text: str, name: str, sidecar: str | None = None, where: str | None = None) -> ModelSpec:
    """The model of a config.json's text, with the text of ModelOpt's hf_quant_config.json where there is one.

    Args:
        where: the file that the text is from, for errors.

    Raises:
        UnreadableModel: not a JSON object; or as `parse_config`.
    """
    config = _json_object(text, where or name)
    return parse_config(config if sidecar is None else _with_sidecar(config, sidecar, name), name)


def _load_json(path: Path, name: str) -> ModelSpec:
    sidecar = path.parent / _SIDECAR
    return parse_config_text(_text(path), name, _text(sidecar) if sidecar.is_file() else None, str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableModel(path, f"can't be read: {getattr(error, 'strerror', None) or error}") from error


def _json_object(text: str, where: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UnreadableModel(where, f"not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnreadableModel(where, f"a config must be a JSON object, got {type(content).__name__}")
    return content


def _with_sidecar(config: dict[str, object], sidecar: str, where: str) -> dict[str, object]:
    """ModelOpt writes the quantization to a file of its own; take it where the config has none."""
    if "quantization_config" in config:
        return config
    section = _json_object(sidecar, f"{where}: {_SIDECAR}").get("quantization")
    if not isinstance(section, dict):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **section}}
