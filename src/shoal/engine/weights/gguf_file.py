"""Weights in a GGUF file, dequantized and given back the names and layout they have in Hugging Face checkpoints.

llama.cpp's converter (convert_hf_to_gguf.py) changes two things besides names, undone here:
- q and k rows of the `llama` architecture are permuted, so that rotary pairs become neighbours;
- norm weights of `gemma3` have one added.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from shoal.engine.errors import WeightsError
from shoal.engine.weights.source import Ranges, cut
from shoal.specs.errors import UnreadableModel
from shoal.specs.gguf_header import GgufTensor, read_gguf_header

_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)$")
_LAYER_NAMES: Mapping[str, str] = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
_LLAMA_NORMS: Mapping[str, str] = {"ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS: Mapping[str, str] = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TOP_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Not weights: llama3 RoPE scaling, which the model spec already has.
_IGNORED = ("rope_freqs.weight",)
_NORMS_BY_ARCHITECTURE: Mapping[str, Mapping[str, str]] = {
    "llama": _LLAMA_NORMS,
    "qwen2": _LLAMA_NORMS,
    "qwen3": _LLAMA_NORMS,
    "gemma3": _GEMMA_NORMS,
}


# Elements dequantized in one go: enough to hide numpy's overhead a call, few enough to stay in the cache.
_CHUNK = 1 << 18
# The gguf library takes 16 rows in one go, whatever their length.
_ROWS_AT_ONCE = 16


class GgufSource:
    """The tensors of a GGUF model, in one file or several."""

    def __init__(self, path: Path) -> None:
        """Raises WeightsError for a file that isn't whole GGUF, or of an architecture without a name table."""
        self._path = path
        self._data: dict[Path, npt.NDArray[np.uint8]] = {}
        self.bytes_read = 0
        try:
            header = read_gguf_header(path)
        except UnreadableModel as error:
            raise WeightsError(str(error), file=None) from error
        self._values = header.values
        self._architecture = str(header.values.get("general.architecture"))
        if self._architecture not in _NORMS_BY_ARCHITECTURE:
            known = ", ".join(_NORMS_BY_ARCHITECTURE)
            raise WeightsError(f"architecture {self._architecture!r} is not read; accepted: {known}", file=path)
        self._tensors: dict[str, GgufTensor] = {
            self._hf_name(name): tensor for name, tensor in header.tensors.items() if name not in _IGNORED
        }

    def names(self) -> Sequence[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise WeightsError("no such tensor", file=self._path, tensor=name)
        return self._tensors[name].shape

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Dequantized to float32."""
        for name in self._tensors:
            yield name, self.read(name)

    def read(self, name: str, ranges: Ranges = ()) -> Tensor:
        """See `WeightSource.read`. Dequantized to float32; only the quantization blocks that the part touches are
        read, for a matrix.
        """
        shape = self.shape(name)
        entry = self._tensors[name]
        heads = self._permuted_heads(name)
        if len(shape) != 2 or not ranges or (heads and not _whole_heads(ranges[0], shape[0] // heads)):
            whole = self._matrix(name, entry, range(1), range(math.prod(shape))).view(shape)
            return cut(self._restored(name, whole, heads), ranges)
        rows, columns = (*ranges, range(shape[1]))[:2]
        part = self._matrix(name, entry, rows, columns, shape[1])
        return self._restored(name, part, heads * len(rows) // shape[0])

    def _matrix(
        self, name: str, entry: GgufTensor, rows: range, columns: range, width: int | None = None
    ) -> Tensor:
        """Numbers of a tensor read as rows of `width` (None: all in one), [rows, columns]."""
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[entry.kind]]
            if entry.file not in self._data:
                self._data[entry.file] = np.memmap(entry.file, dtype=np.uint8, mode="r")
            raw = self._data[entry.file][entry.offset : entry.offset + entry.size_bytes]
            row_bytes = len(raw) if width is None else width // block * block_bytes
            first, last = columns.start // block, -(-columns.stop // block)
            blocks = raw.reshape(-1, row_bytes)[rows.start : rows.stop, first * block_bytes : last * block_bytes]
            blocks = np.ascontiguousarray(blocks)
            self.bytes_read += blocks.nbytes
            values = _dequantized(blocks.reshape(-1), entry.kind)
        except NotImplementedError as error:
            raise WeightsError(f"type {entry.kind} can't be dequantized", file=self._path, tensor=name) from error
        skipped = columns.start - first * block
        return torch.from_numpy(values).view(len(rows), -1)[:, skipped : skipped + len(columns)]

    def _restored(self, name: str, tensor: Tensor, heads: int) -> Tensor:
        """`tensor` as the checkpoint has it; `heads` of it lie permuted."""
        if self._architecture == "gemma3" and name.endswith("norm.weight"):
            return tensor - 1.0
        return _unpermuted(tensor, heads) if heads else tensor

    def _permuted_heads(self, name: str) -> int:
        """How many heads of rows the converter has permuted in this tensor; 0: it has left it alone."""
        if self._architecture != "llama":
            return 0
        if ".self_attn.q_proj." in name:
            return self._count("llama.attention.head_count")
        if ".self_attn.k_proj." in name:
            return self._count("llama.attention.head_count_kv", self._count("llama.attention.head_count"))
        return 0

    def _hf_name(self, name: str) -> str:
        if name in _TOP_NAMES:
            return _TOP_NAMES[name]
        match = _LAYER.match(name)
        if match is None:
            return name
        layer, part, kind = match.groups()
        mapped = _LAYER_NAMES.get(part) or _NORMS_BY_ARCHITECTURE[self._architecture].get(part)
        return name if mapped is None else f"model.layers.{layer}.{mapped}.{kind}"

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise WeightsError(f"{key} is {value!r}; accepted: a positive integer", file=self._path)
        return value


def _dequantized(raw: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """Flat numbers of a tensor's bytes, in memory of its own. Raises NotImplementedError for an unknown type."""
    ggml_type = GGMLQuantizationType[kind]
    block, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = len(raw) // block_bytes
    # Rows may be cut anywhere between blocks.
    rows = min(blocks, max(1, blocks * block * _ROWS_AT_ONCE // _CHUNK))
    while blocks % rows:
        rows -= 1
    values: npt.NDArray[np.float32] = dequantize(raw.reshape(rows, -1), ggml_type)
    return np.array(values, dtype=np.float32, copy=not values.flags.writeable).reshape(-1)


def _whole_heads(rows: range, width: int) -> bool:
    return rows.start % width == 0 and rows.stop % width == 0


def _unpermuted(tensor: Tensor, heads: int) -> Tensor:
    """Rows of a head from neighbouring pairs (0, d/2, 1, d/2 + 1, …) back to halves."""
    return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
