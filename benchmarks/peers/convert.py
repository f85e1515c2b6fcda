"""Write a GGUF model as float32 safetensors, for engines that read nothing else. Same values, dequantized once."""

import os
import shutil
from pathlib import Path

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
    try:
        partial.rename(done)
    except OSError:
        # Another process was faster.
        shutil.rmtree(partial)
    return done
