"""From a `config.json` (or a GGUF file's metadata) to `ModelSpec`.

The semantics are those of Transformers 5.24's modeling code, defaults included: a model built from the spec alone
computes the same logits. A multimodal config is read for its text model only; vision and audio towers are neither
built nor counted.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from shoal.specs.errors import UnknownArchitecture, UnreadableModel
from shoal.specs.families import BY_ARCHITECTURE, BY_MODEL_TYPE, Parser
from shoal.specs.fields import Fields
from shoal.specs.model import ModelSpec

_CONFIG = "config.json"


def parse_config(config: Mapping[str, object], name: str) -> ModelSpec:
    """The model a config.json describes.

    Args:
        config: the parsed JSON. A `text_config` inside is the model; the rest supplies what it leaves out.
        name: how to call the model, in the spec and in errors.

    Raises:
        UnknownArchitecture: no parser for its `model_type` or `architectures`.
        InvalidField: a field is missing or has a value that can't be right.
    """
    if not isinstance(config, Mapping):
        raise UnreadableModel(name, f"a config must be an object, got {type(config).__name__}")
    outer = Fields(config, name)
    text = outer.section("text_config")
    if text is None:
        return _parser(outer)(outer, None)
    if not text.values:
        raise outer.error("text_config", {}, "the text model's fields")
    return _parser(text, outer)(text, outer)


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
        from shoal.specs.gguf_metadata import load_gguf_spec

        return load_gguf_spec(path)
    return _load_json(path, path.parent.name if path.name == _CONFIG else path.stem)


def known_architectures() -> tuple[str, ...]:
    """Every `architectures[0]` that `parse_config` reads."""
    return tuple(sorted(BY_ARCHITECTURE))


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


def _parser(fields: Fields, outer: Fields | None = None) -> Parser:
    model_type = fields.text("model_type")
    parser = BY_MODEL_TYPE.get(model_type)
    if parser is not None:
        return parser
    names = fields.words("architectures") or (outer.words("architectures") if outer is not None else None) or ()
    for name in names:
        if name in BY_ARCHITECTURE:
            return BY_ARCHITECTURE[name]
    found = names[0] if names else model_type
    if not found:
        raise fields.error("architectures", None, "a list with the model's class, or model_type")
    raise UnknownArchitecture(fields.model, found, BY_ARCHITECTURE if names else BY_MODEL_TYPE)
