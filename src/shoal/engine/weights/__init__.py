"""Where tensors come from: safetensors and GGUF, streamed tensor by tensor."""

import json
from pathlib import Path

from shoal.engine.errors import WeightsError
from shoal.engine.weights.checkpoint import SafetensorsSource, open_directory
from shoal.engine.weights.gguf_file import GgufSource
from shoal.engine.weights.published import as_published
from shoal.engine.weights.source import WeightSource
from shoal.specs.gguf_header import SHARD

__all__ = ["WeightSource", "WeightsError", "open_weights"]


def open_weights(path: Path) -> WeightSource:
    """A directory of safetensors (or with one GGUF file), one safetensors file, or a GGUF file.

    Headers are checked on opening. Raises WeightsError for what is missing, cut short or of another kind.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not any(path.glob("*.safetensors*")):
            if len({SHARD.sub("", path.name) for path in ggufs}) > 1:
                raise WeightsError(f"{len(ggufs)} GGUF files in it; give one of them", file=path)
            return GgufSource(ggufs[0])
        return as_published(open_directory(path), _gptq_zero(path))
    if not path.is_file():
        raise WeightsError("no such file or directory", file=path)
    if path.suffix == ".gguf":
        return GgufSource(path)
    if path.suffix == ".safetensors":
        return as_published(SafetensorsSource({path: None}))
    raise WeightsError("accepted: a directory, a .safetensors or a .gguf file", file=path)


def _gptq_zero(folder: Path) -> int:
    """What stored zeros lack: GPTQModel's second format, named in the configuration alone, stores them whole."""
    for name, section in (("config.json", "quantization_config"), ("quantize_config.json", None)):
        try:
            said = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        part = said.get(section) if section and isinstance(said, dict) else said
        if isinstance(part, dict) and part.get("checkpoint_format") == "gptq_v2":
            return 0
    return 1
