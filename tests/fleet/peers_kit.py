"""Other people's engines on this machine: where they are, and SmolLM2 in the format that vLLM wants."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

VLLM = Path(os.environ.get("SHOAL_VLLM", "/opt/peers/vllm/bin/python"))
"""Python of an environment that has vLLM."""
LLAMACPP = Path(os.environ.get("SHOAL_LLAMACPP", "/opt/peers/llamacpp/bin/python"))
"""Python of an environment that has xllamacpp, or a `llama-server`."""
CACHE = Path.home() / ".cache" / "shoal" / "bench"

# llama.cpp's server as xllamacpp embeds it, with the options of `llama-server` that we use.
_SHIM = """#!{python}
import argparse, os, signal
import xllamacpp
parser = argparse.ArgumentParser()
for name in ("model", "alias", "host"):
    parser.add_argument("--" + name)
for name in ("port", "threads", "ctx-size", "parallel"):
    parser.add_argument("--" + name, type=int)
for name in ("metrics", "slots"):
    parser.add_argument("--" + name, action="store_true")
told = parser.parse_args()
params = xllamacpp.CommonParams()
params.model.path, params.model_alias = told.model, {{told.alias}}
params.hostnames, params.port = [told.host], told.port
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = told.ctx_size, told.parallel, told.threads
params.endpoint_metrics, params.endpoint_slots = told.metrics, told.slots
server = xllamacpp.Server(params)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
"""


def vllm_python() -> str:
    if not VLLM.exists():
        pytest.skip(f"no vLLM at {VLLM}; set SHOAL_VLLM to the Python of its environment")
    return str(VLLM)


def llama_server(folder: Path) -> str:
    """A program that takes llama-server's options."""
    if not LLAMACPP.exists():
        pytest.skip(f"no llama.cpp at {LLAMACPP}; set SHOAL_LLAMACPP to llama-server, or a Python with xllamacpp")
    if "python" not in LLAMACPP.name:
        return str(LLAMACPP)
    shim = folder / "llama-server"
    shim.write_text(_SHIM.format(python=LLAMACPP))
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    return str(shim)


def converted(gguf: Path) -> Path:
    """SmolLM2 as safetensors, dequantized once and kept."""
    target = CACHE / "smollm2-135m-hf"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "convert.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "config.json").exists():
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

            partial = target.with_suffix(".partial")
            options = {"gguf_file": gguf.name}
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **options
            )
            model.save_pretrained(partial)
            AutoTokenizer.from_pretrained(str(gguf.parent), **options).save_pretrained(partial)
            partial.rename(target)
    return target
