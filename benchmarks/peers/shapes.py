"""Models of a size, with random weights: what an engine's speed depends on is their shape.

    random-1.5b   a Llama of 32 layers, 2,048 wide: its weights fit no cache, so that memory paces decoding
    random-moe    a Mixtral of 12 layers, 512 wide, two of eight experts a token

Made once and kept. Tokenizer and the rest of a GGUF's metadata are those of a model that is here.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peers.convert import CACHE, copy_metadata, write_out

BLOCK = 32
"""Numbers that share a scale in Q4_1 and Q8_0."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Of a model whose head has 64 numbers and whose head is its embedding."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    experts: int = 0
    """0: none, a dense model."""
    used: int = 0
    vocabulary: int = 49_152

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names as in a GGUF, and shapes, rows first."""
        yield "token_embd.weight", (self.vocabulary, self.width)
        yield "output_norm.weight", (self.width,)
        stack = (self.experts,) if self.experts else ()
        kind = "_exps" if self.experts else ""
        for layer in range(self.layers):
            at = f"blk.{layer}."
            yield f"{at}attn_norm.weight", (self.width,)
            yield f"{at}ffn_norm.weight", (self.width,)
            yield f"{at}attn_q.weight", (self.heads * 64, self.width)
            yield f"{at}attn_k.weight", (self.kv_heads * 64, self.width)
            yield f"{at}attn_v.weight", (self.kv_heads * 64, self.width)
            yield f"{at}attn_output.weight", (self.width, self.heads * 64)
            if self.experts:
                yield f"{at}ffn_gate_inp.weight", (self.experts, self.width)
            yield f"{at}ffn_gate{kind}.weight", (*stack, self.inner, self.width)
            yield f"{at}ffn_up{kind}.weight", (*stack, self.inner, self.width)
            yield f"{at}ffn_down{kind}.weight", (*stack, self.width, self.inner)


SHAPES = {
    "random-1.5b": Dimensions(layers=32, width=2048, heads=32, kv_heads=8, inner=5504),
    "random-moe": Dimensions(layers=12, width=512, heads=8, kv_heads=4, inner=1024, experts=8, used=2),
}


def as_gguf(name: str, like: Path, kind: str) -> Path:
    """A GGUF of that shape whose matrices are `Q4_1` or `Q8_0`, and whose metadata are `like`'s."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

    done = CACHE / f"{name}-{kind}.gguf"
    if done.is_file():
        return done
    print(f"making {done}")
    CACHE.mkdir(parents=True, exist_ok=True)
    shape, rng = SHAPES[name], np.random.default_rng(0)
    partial = CACHE / f".{done.name}-{os.getpid()}"
    writer = GGUFWriter(partial, "llama")
    ours: dict[str, int] = {
        "llama.block_count": shape.layers,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.rope.dimension_count": 64,
    }
    if shape.experts:
        ours |= {"llama.expert_count": shape.experts, "llama.expert_used_count": shape.used}
    copy_metadata(GGUFReader(like), writer, but=ours)
    for key, value in ours.items():
        writer.add_uint32(key, value)
    quantized = {"Q4_1": GGMLQuantizationType.Q4_1, "Q8_0": GGMLQuantizationType.Q8_0}[kind]
    for tensor, dims in shape.tensors():
        if len(dims) == 1 or "gate_inp" in tensor:
            plain = np.ones(dims) if len(dims) == 1 else rng.normal(0, 0.05, dims)
            writer.add_tensor(tensor, plain.astype(np.float32))
        else:
            writer.add_tensor(tensor, _blocks(rng, dims, kind), raw_dtype=quantized)
    write_out(writer)
    partial.rename(done)
    return done


def _blocks(rng: np.random.Generator, dims: tuple[int, ...], kind: str) -> Any:
    """Random codes under scales that keep values as small as a trained model's."""
    deviation = dims[-1] ** -0.5
    blocks = int(np.prod(dims)) // BLOCK
    if kind == "Q8_0":
        scale = np.full((blocks, 1), deviation / 60, np.float16).view(np.uint8)
        codes = rng.integers(0, 256, (blocks, BLOCK), np.uint8)
        whole = np.concatenate([scale, codes], axis=1)
    else:
        step = deviation / 4
        scale = np.tile(np.array([step, -7.5 * step], np.float16).view(np.uint8), (blocks, 1))
        codes = rng.integers(0, 256, (blocks, BLOCK // 2), np.uint8)
        whole = np.concatenate([scale, codes], axis=1)
    return whole.reshape(*dims[:-1], -1)


def as_mixtral(name: str, tokenizer: Path) -> Path:
    """A directory in Transformers' form, in bfloat16, with the tokenizer of the directory `tokenizer`."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    done = CACHE / f"{name}-bf16"
    if done.is_dir():
        return done
    print(f"making {done}")
    shape = SHAPES[name]
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        num_local_experts=shape.experts,
        num_experts_per_tok=shape.used,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        sliding_window=None,
    )
    partial = CACHE / f".{done.name}-{os.getpid()}"
    MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(partial)
    for file in tokenizer.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(file, partial)
    partial.rename(done)
    return done
