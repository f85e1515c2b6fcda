"""How weights are stored: the formats, what a config's `quantization_config` says, and the bytes a tensor takes.

Bytes are exact, scales included, for the layouts checkpoints use: float8 with 128 × 128 blocks (DeepSeek-V3),
OCP MX (mxfp4: 32 values share an 8-bit exponent), NVFP4 (16 values share an 8-bit float, a tensor a 32-bit one),
GPTQ and AWQ (a 16-bit scale and a 4-bit zero a group).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shoal.specs.errors import SpecError
from shoal.specs.fields import Fields
from shoal.specs.model import QuantizationSpec

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bits of a weight, and what is stored besides: per block of `block`, per output row, per tensor."""

    bits: float
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale."""
    block_bits: int = 0
    row_bits: int = 0
    tensor_bits: int = 0


FORMATS: Mapping[str, WeightFormat] = {
    "float32": WeightFormat(32),
    "bfloat16": WeightFormat(16),
    "float16": WeightFormat(16),
    "fp8": WeightFormat(8, tensor_bits=32),
    "fp8_channel": WeightFormat(8, row_bits=32),
    "fp8_block": WeightFormat(8, (128, 128), block_bits=32),
    "int8": WeightFormat(8, row_bits=32),
    "int4": WeightFormat(4, (1, 128), block_bits=20),
    "int4_symmetric": WeightFormat(4, (1, 128), block_bits=16),
    "mxfp4": WeightFormat(4, (1, 32), block_bits=8),
    "mxfp8": WeightFormat(8, (1, 32), block_bits=8),
    "nvfp4": WeightFormat(4, (1, 16), block_bits=8, tensor_bits=32),
    "nf4": WeightFormat(4, (1, 64), block_bits=32),
    "nf4_double": WeightFormat(4, (1, 64), block_bits=8),
    "shoal_int8": WeightFormat(8, (1, 32), block_bits=16),
    "shoal_int4": WeightFormat(4, (1, 32), block_bits=32),
}
"""Methods by name. `int4` is GPTQ's and AWQ's, `int4_symmetric` has no zeros (compressed-tensors), `nf4` is
bitsandbytes'; `shoal_…` is what `shoal serve --quantize` rounds to; the first three are plain dtypes."""
EMBEDDING_METHODS: Mapping[str, str] = {"shoal_int8": "shoal_int8", "shoal_int4": "shoal_int8"}
"""How embedding and head are stored by methods that round those too."""

_PLAIN = ("float32", "bfloat16", "float16")
_ALIASES = {
    "fp32": "float32", "f32": "float32", "float": "float32",
    "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "16bit": "bfloat16",
    "awq": "int4", "gptq": "int4", "w4a16": "int4", "w4a16_awq": "int4", "w4a16_gptq": "int4", "awq_marlin": "int4",
    "gptq_marlin": "int4", "4bit": "int4", "w4": "int4",
    "fp8_e4m3": "fp8", "fp8_e4m3fn": "fp8", "e4m3": "fp8", "float8": "fp8", "float8_e4m3fn": "fp8",
    "w8a8_fp8": "fp8", "fp8_dynamic": "fp8", "fp8_tensor": "fp8", "fp8_blockwise": "fp8_block",
    "w8a16": "int8", "w8a8_int8": "int8", "int8_w8a8": "int8",
    "w4a4": "nvfp4", "nvfp4_awq": "nvfp4", "w4a16_nvfp4": "nvfp4",
}  # fmt: skip
"""What people and tools call the methods, with `-` written `_` and no blanks."""
_UNCLEAR = {
    "w8a8": "fp8 or int8", "8bit": "fp8 or int8", "w8": "fp8 or int8",
    "fp4": "nvfp4 (NVIDIA) or mxfp4 (AMD, gpt-oss)",
    "fp8_e5m2": "fp8 (e4m3); engines keep no weights in e5m2",
}  # fmt: skip
"""Names with two readings, and what to write instead."""
# What engines leave alone when nobody says otherwise. Embeddings, routers and norms are not linear layers at all.
_DEFAULT_EXCEPTIONS = ("lm_head",)


def quantization(method: str) -> QuantizationSpec:
    """A method by name, with the usual exceptions: `bf16`, `fp8_block`, `int4`, `mxfp4`, …

    Raises SpecError for a name that isn't one.
    """
    name = format_name(method)
    block = FORMATS[name].block
    excluded = () if name in _PLAIN or name in EMBEDDING_METHODS else _DEFAULT_EXCEPTIONS
    return QuantizationSpec(name, mean_bits(name, block or ()), block or (), excluded)


def format_name(text: str, field: str = "quantization") -> str:
    """The method that a text names, as `FORMATS` has it: "w4a16", "FP8-E4M3" and "4-bit" are int4, fp8 and int4."""
    folded = re.sub(r"[-\s]+", "_", text.strip().lower()).replace("_bit", "bit")
    name = _ALIASES.get(folded, folded)
    if name in FORMATS:
        return name
    if folded in _UNCLEAR:
        raise SpecError(field, text, _UNCLEAR[folded])
    common = "bf16, fp16, fp32, fp8, fp8_block, fp8_channel, int8, int4 (w4a16, awq, gptq), nvfp4, mxfp4, nf4"
    raise SpecError(field, text, f"one of {common}")


def mean_bits(method: str, group: tuple[int, ...] = ()) -> float:
    """Bits a weight with its share of the block scales; scales of rows and tensors are left to `stored_bytes`."""
    layout = FORMATS[method]
    rows, columns = _block(layout, group)
    return layout.bits + (layout.block_bits / (rows * columns) if layout.block else 0.0)


def stored_bytes(shape: tuple[int, ...], method: QuantizationSpec) -> int:
    """Bytes of one quantized tensor [rows, columns], scales included, each row of blocks rounded up."""
    count = math.prod(shape)
    if method.method == "gguf":
        return round(count * method.bits / 8)
    layout = FORMATS[method.method]
    rows, columns = (shape[0], count // shape[0]) if len(shape) > 1 else (1, count)
    bits = count * layout.bits + layout.row_bits * rows + layout.tensor_bits
    if layout.block is not None:
        block_rows, block_columns = _block(layout, method.group)
        bits += layout.block_bits * -(-rows // block_rows) * -(-columns // block_columns)
    return int(-(-bits // 8))


def is_excluded(module: str, method: QuantizationSpec) -> bool:
    """Whether a module, by its full name in the checkpoint, is among the exceptions.

    Plain entries name a module, one that contains it, or the last parts of its name; `*` stands for anything;
    `re:` begins a regular expression (the rules of Transformers, compressed-tensors and ModelOpt together).
    """
    exact, patterns = _exceptions(method.excluded)
    parts = module.split(".")
    starts = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    ends = (".".join(parts[begin:]) for begin in range(1, len(parts)))
    if any(name in exact for name in starts) or any(name in exact for name in ends):
        return True
    return any(pattern.match(module) for pattern in patterns)


def parse_quantization(section: Fields, config: Fields) -> QuantizationSpec | None:
    """`quantization_config` as a spec; `config` is what it stands in. Raises InvalidField for an unknown method."""
    method = section.text("quant_method").lower().replace("_", "-")
    if not method and section.text("quant_algo"):
        method = "modelopt"  # ModelOpt's own file has no quant_method
    readers = {
        "fp8": _fp8,
        "fbgemm-fp8": _fp8,
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
        "modelopt-fp4": _modelopt,
        "modelopt-mxfp8": _modelopt,
        "mxfp4": _mxfp4,
        "mxfp8": lambda _: ("mxfp8", (1, 32)),
        "gptq": _grouped_integers,
        "gptq-marlin": _grouped_integers,
        "awq": _grouped_integers,
        "awq-marlin": _grouped_integers,
        "auto-round": _grouped_integers,
        "bitsandbytes": _bitsandbytes,
    }
    if method not in readers:
        raise section.error("quant_method", section.text("quant_method") or None, "one of " + ", ".join(readers))
    name, group = readers[method](section)
    listed = section.words("modules_to_not_convert", "ignore", "exclude_modules")
    # compressed-tensors and ModelOpt list every exception; the others convert no head unless told to.
    complete = method.startswith(("compressed-tensors", "modelopt")) and listed is not None
    excluded = tuple(listed or ()) if complete else tuple(dict.fromkeys((*(listed or ()), *_DEFAULT_EXCEPTIONS)))
    experts = {"fp4": "mxfp4"}.get(section.text("expert_dtype") or config.text("expert_dtype"))
    return QuantizationSpec(name, mean_bits(name, group), group, excluded, experts)


_Format = tuple[str, tuple[int, ...]]


def _fp8(section: Fields) -> _Format:
    block = section.integers("weight_block_size")
    if block is None:
        return ("fp8_channel" if section.text("quant_method").startswith("fbgemm") else "fp8"), ()
    if len(block) != 2 or min(block) < 1:
        raise section.error("weight_block_size", block, "two positive integers, rows and columns")
    return "fp8_block", block


def _mxfp4(section: Fields) -> _Format:
    return "mxfp4", (1, 32)


def _grouped_integers(section: Fields) -> _Format:
    bits = section.size("bits", "w_bit", default=4)
    group = section.values.get("group_size", section.values.get("q_group_size", 128))
    if bits not in (4, 8) or not isinstance(group, int):
        raise section.error("bits", bits, "4 or 8, with an integer group_size")
    return ("int4", (1, group)) if bits == 4 and group > 0 else ("int8", ())


def _bitsandbytes(section: Fields) -> _Format:
    if section.flag("load_in_4bit", "_load_in_4bit", default=False):
        return ("nf4_double" if section.flag("bnb_4bit_use_double_quant", default=False) else "nf4"), (1, 64)
    return "int8", ()


def _modelopt(section: Fields) -> _Format:
    algorithm = section.text("quant_algo", default="NVFP4" if "fp4" in section.text("quant_method") else "").upper()
    known: dict[str, _Format] = {
        "FP8": ("fp8", ()),
        "NVFP4": ("nvfp4", (1, 16)),
        "NVFP4_AWQ": ("nvfp4", (1, 16)),
        "W4A16_NVFP4": ("nvfp4", (1, 16)),
        "MXFP8": ("mxfp8", (1, 32)),
        "W4A8_MXFP4_FP8": ("mxfp4", (1, 32)),
        "INT8_SQ": ("int8", ()),
        "W8A8_SQ_PER_CHANNEL": ("int8", ()),
        "W4A8_AWQ": ("int4", (1, section.size("group_size", default=128))),
        "W4A16_AWQ": ("int4", (1, section.size("group_size", default=128))),
        "FP8_PB_WO": ("fp8_block", (128, 128)),
        "FP8_PER_CHANNEL_PER_TOKEN": ("fp8_channel", ()),
    }
    if algorithm not in known:
        raise section.error("quant_algo", algorithm or None, "one of " + ", ".join(sorted(known)))
    return known[algorithm]


def _compressed_tensors(section: Fields) -> _Format:
    groups = section.section("config_groups")
    first = next(iter(sorted(groups.values))) if groups is not None and groups.values else "group_0"
    entry = groups.section(first) if groups is not None else None
    weights = entry.section("weights") if entry is not None else None
    if entry is None or weights is None:
        raise section.error("config_groups", None, "an object with a group that has `weights`")
    bits, kind = weights.size("num_bits", maximum=16), weights.text("type", default="int")
    strategy, group = weights.text("strategy", default="tensor"), weights.optional_size("group_size")
    layout = entry.text("format") or section.text("format")
    if (kind, bits) == ("float", 4):
        return ("mxfp4", (1, 32)) if "mxfp4" in layout or group == 32 else ("nvfp4", (1, 16))
    if (kind, bits) == ("float", 8) and strategy == "block":
        return "fp8_block", weights.integers("block_structure") or (128, 128)
    if (kind, bits) == ("float", 8):
        return ("fp8_channel" if strategy == "channel" else "fp8"), ()
    if (kind, bits) == ("int", 4):
        return ("int4_symmetric" if weights.flag("symmetric", default=True) else "int4"), (1, group or 128)
    if (kind, bits) == ("int", 8):
        return "int8", ()
    raise weights.error("num_bits", bits, "4 or 8 of type int or float")


def _block(layout: WeightFormat, group: tuple[int, ...]) -> tuple[int, int]:
    if len(group) == 2:
        return group[0], group[1]
    return layout.block or (1, 1)


@lru_cache(maxsize=256)
def _exceptions(excluded: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    exact, patterns = set(), []
    for entry in excluded:
        if entry.startswith("re:"):
            patterns.append(re.compile(entry.removeprefix("re:")))
        elif "*" in entry:
            # `model.layers.*.self_attn` also stands for what is inside.
            body = ".*".join(re.escape(piece) for piece in entry.split("*"))
            patterns.append(re.compile(rf"(?:.*\.)?{body}(?:\..*)?$"))
        else:
            exact.add(entry)
    return frozenset(exact), tuple(patterns)
