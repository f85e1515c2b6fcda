"""Write a GGUF model in other forms, each made once and kept: as float32 safetensors, for engines that read nothing
else, from these as compressed-tensors W8A8, and as Q8_0. Same values, dequantized once; forms in eight bits round
them to their own steps.
"""

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

CACHE = Path(os.environ.get("SHOAL_HOME", Path.home() / ".cache" / "shoal")) / "bench"


def as_safetensors(gguf: Path) -> Path:
    """A directory with the model in Transformers' form; made at the first call."""
    done = CACHE / f"{gguf.stem}-fp32"
    if done.is_dir():
        return done
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {gguf.name} to float32 safetensors at {done}")
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = type(read.config)(**{k: v for k, v in read.config.to_dict().items() if k != "quantization_config"})
    # What was read from GGUF calls itself quantized and won't be saved, though its weights are plain by now.
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    partial = CACHE / f".{done.name}-{os.getpid()}"
    plain.save_pretrained(partial)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
    return _kept(partial, done)


def _kept(partial: Path, done: Path) -> Path:
    """A whole directory under its name."""
    try:
        partial.rename(done)
    except OSError:
        # Another process was faster.
        shutil.rmtree(partial)
    return done


def as_w8a8(plain: Path) -> Path:
    """A directory as `plain`, with the layers' matrices in eight bits a channel and inputs rounded as they come."""
    done = CACHE / f"{plain.name}-w8a8"
    if done.is_dir():
        return done
    import torch
    from safetensors.torch import load_file, save_file

    print(f"converting {plain.name} to W8A8 at {done}")
    partial = CACHE / f".{done.name}-{os.getpid()}"
    shutil.copytree(plain, partial)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if ".layers." not in name or tensor.dim() != 2:
            tensors[name] = tensor
            continue
        scale = (tensor.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
        tensors[name] = (tensor / scale).round().clamp(-127, 127).to(torch.int8)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    rounded = {"num_bits": 8, "type": "int", "symmetric": True}
    scheme = {
        "targets": ["Linear"],
        "weights": rounded | {"strategy": "channel", "dynamic": False},
        "input_activations": rounded | {"strategy": "token", "dynamic": True},
    }
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": scheme},
    }
    (partial / "config.json").write_text(json.dumps(config, indent=1))
    return _kept(partial, done)


def as_q8_0(gguf: Path) -> Path:
    """A GGUF file whose matrices are Q8_0; made at the first call."""
    done = CACHE / f"{gguf.stem}-Q8_0.gguf"
    if done.is_file():
        return done
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize

    print(f"converting {gguf.name} to Q8_0 at {done}")
    CACHE.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(gguf)
    partial = CACHE / f".{done.name}-{os.getpid()}"
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(partial, architecture)
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        if tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        rounded = quantize(dequantize(tensor.data, tensor.tensor_type), GGMLQuantizationType.Q8_0)
        writer.add_tensor(tensor.name, rounded, raw_dtype=GGMLQuantizationType.Q8_0)
    write_out(writer)
    partial.rename(done)
    return done


def copy_metadata(reader: "GGUFReader", writer: "GGUFWriter", but: Collection[str] = ()) -> None:
    """Everything that a GGUF says of its model, `but` what the caller says."""
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        # The writer says these itself; the file type named what is changed here.
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", *but):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)


def write_out(writer: "GGUFWriter") -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
