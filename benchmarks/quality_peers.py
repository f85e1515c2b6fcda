"""What Shoal's int8 and int4 lose beside llama.cpp's Q4_K, Q5_0 and Q8_0, on the same prompts in the same engine.

    python benchmarks/quality_peers.py [--model smollm2-135m] [--prompts N] [--noise 0.0] [--append FILE]

llama.cpp's own code does the rounding (its shared library inside the xllamacpp wheel, by ctypes; found by
--llamacpp-library or BENCH_LLAMACPP_LIBRARY). Its matrices are dequantized and run in float32, so that its figures
are of weights alone; Shoal's include its rounded activations. Embedding and head are Q8_0 or Shoal's eight bits.

Q4_K takes super-blocks of 256 inputs. Where a row is no multiple of that, llama.cpp falls back to Q5_0 (`q4_k`);
`q4_k flat` takes rows one after another, in super-blocks that cross from one to the next.

A checkpoint that is quantized already has too few levels to tell: --noise 0.1 adds normal noise of a tenth of each
row's standard deviation to all matrices first, for the reference and everyone alike.
"""

import argparse
import ctypes
import glob
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from machine import append, describe
from shoal.engine.models.build import build_model
from shoal.engine.models.decoder import CausalLM
from shoal.engine.models.quantize import quantize_model
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.quality import Quality, Scorer, compare, passages, summarize, windows_of
from shoal.engine.ranks.load import LoadedRank, load_worker
from shoal.engine.sources import resolve_model
from shoal.engine.text.tokenizer import load_tokenizer
from shoal.engine.weights import open_weights
from shoal.specs import load_model_spec

TYPES = {"q4_k": gguf.GGMLQuantizationType.Q4_K, "q5_0": gguf.GGMLQuantizationType.Q5_0}
SUPER = 256


class Llama:
    """The quantizers of llama.cpp."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.PyDLL(str(library))

    def rounded(self, weight: Tensor, name: str) -> Tensor:
        """A matrix quantized as `q4_k`, `q4_k flat`, `q5_0` or `q8_0`, and dequantized."""
        values = np.ascontiguousarray(weight.numpy(), dtype=np.float32)
        if name == "q8_0":
            kind = gguf.GGMLQuantizationType.Q8_0
            return torch.from_numpy(gguf.dequantize(gguf.quantize(values, kind), kind)).reshape(weight.shape)
        if name == "q4_k flat" and values.size % SUPER == 0:
            values = values.reshape(-1, SUPER)
        kind = TYPES["q5_0" if name == "q5_0" or values.shape[1] % SUPER else "q4_k"]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.empty((values.shape[0], values.shape[1] // block * size), np.uint8)
        function = self._library.quantize_q4_K if kind == TYPES["q4_k"] else self._library.quantize_q5_0
        function.restype = ctypes.c_size_t
        function.argtypes = (*[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, ctypes.c_void_p)
        function(values.ctypes.data, raw.ctypes.data, values.shape[0], values.shape[1], None)
        return torch.from_numpy(gguf.dequantize(raw, kind)).reshape(weight.shape)


def tensors(path: Path, noise: float, change: Callable[[str, Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """A checkpoint's, its matrices with noise that depends on their names alone, then changed."""
    for name, tensor in open_weights(path).tensors():
        if tensor.dim() == 2:
            seed = sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31
            drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
            tensor = tensor.float() + noise * tensor.float().std(1, keepdim=True) * drawn
            tensor = change(name, tensor)
        yield name, tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--noise", type=float, default=0.0)
    found = glob.glob("/opt/peers/llamacpp/lib/python3*/site-packages/xllamacpp/*.so")
    library = os.environ.get("BENCH_LLAMACPP_LIBRARY", found[0] if found else "")
    parser.add_argument("--llamacpp-library", type=Path, default=library or None)
    parser.add_argument("--kinds", default="int8,int4,q8_0,q5_0,q4_k,q4_k flat")
    parser.add_argument("--append", type=Path)
    asked = parser.parse_args()
    if asked.llamacpp_library is None:
        parser.error("--llamacpp-library: where is llama.cpp's shared library?")
    llama = Llama(asked.llamacpp_library)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    path = resolve_model(asked.model).path
    spec, tokenizer = load_model_spec(path), load_tokenizer(path)
    options = EngineOptions(model=asked.model, max_model_len=asked.length, kv_memory=1 << 30)
    first = load_worker(options, Mesh.single(), path, spec, None, ())

    def scorer(kind: str | None) -> Scorer:
        model: CausalLM = build_model(spec, torch.float32, torch.device("cpu"), asked.length)
        if kind in ("int8", "int4"):
            quantize_model(model, kind)  # type: ignore[arg-type]

        def change(name: str, tensor: Tensor) -> Tensor:
            if kind is None or kind in ("int8", "int4"):
                return tensor
            return llama.rounded(tensor, "q8_0" if "embed_tokens" in name or "lm_head" in name else kind)

        model.load(tensors(path, asked.noise, change))
        return Scorer(
            LoadedRank(first.options, first.mesh, spec, model, None, first.dtype, first.device, first.budget),
            asked.length,
        )

    windows = list(windows_of(passages(), tokenizer, asked.length, asked.prompts))
    reference = scorer(None)
    lines = ["| weights | perplexity | mean KL | p99 KL | largest | greedy agreement |", "|---" * 6 + "|"]
    for kind in asked.kinds.split(","):
        other = scorer(kind)
        quality = summarize([(text, compare(reference, other, tokens)) for text, tokens in windows])
        lines.append(row(kind, quality))
        print(lines[-1], flush=True)
        del other
    facts = [*describe(), ("command", shlex.join(["python", *sys.argv])), ("noise", str(asked.noise))]
    facts.append(
        ("full precision", f"perplexity {quality.reference_perplexity:.3f} at {quality.positions} positions")
    )
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + "\n".join(lines))
    if asked.append:
        append(asked.append, f"Quality, {facts[0][1][:10]}", facts, "\n".join(lines))


def row(kind: str, found: Quality) -> str:
    return (
        f"| {kind} | {found.perplexity:.3f} ({found.perplexity_increase:+.2%}) | {found.kl_mean:.5f} "
        f"| {found.kl_p99:.4f} | {found.kl_max:.3f} | {found.agreement:.2%} |"
    )


if __name__ == "__main__":
    main()
