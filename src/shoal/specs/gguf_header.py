"""The header of a GGUF file, read in one walk over the mapped bytes.

The format is ggml's `docs/gguf.md`: magic, version, counts, key-value pairs, tensor entries, aligned data. The
`gguf` library's own reader makes an array object of every token and takes tens of seconds for a vocabulary of
262,144; this one skips what isn't asked for. Block sizes of the tensor types come from that library.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.specs.errors import UnreadableModel

SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")
"""In the names of a model's files, where llama.cpp has split it."""
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Arrays longer than this are tables (tokens, merges, scores); keys of the model itself are a few per layer.
_SHORT = 4096


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor's entry. `shape` is outermost first, as PyTorch has it (the file has it the other way round)."""

    shape: tuple[int, ...]
    kind: str
    """ggml's name of the type: `F32`, `Q4_K`, …"""
    offset: int
    """Of the first byte, from the start of its file."""
    size_bytes: int
    file: Path
    """Which of the model's files holds it."""


@dataclass(frozen=True, slots=True)
class LongArray:
    """A table that was not decoded: how many entries it has."""

    length: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything before the data. Arrays are tuples; long ones are `LongArray` unless tables were asked for."""

    name: str
    values: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: str | Path, *, tables: bool = False) -> GgufHeader:
    """Read the header; the data stay on disk. Of a model in several files, all headers, given any of them.

    Args:
        tables: decode token tables too (as tuples), for a tokenizer.

    Raises:
        UnreadableModel: not GGUF, another version, or shorter than its own header says; or another file of the
            model is missing.
    """
    first, *others = shard_paths(Path(path))
    header = _read(first, tables)
    count = header.values.get("split.count", 1)
    if count not in (0, 1 + len(others)):
        raise UnreadableModel(first, f"one of {count} files, but its name doesn't end with -00001-of-NNNNN.gguf")
    tensors = dict(header.tensors)
    for other in others:
        for name, tensor in _read(other, False).tensors.items():
            if tensors.setdefault(name, tensor) is not tensor:
                raise UnreadableModel(other, f"the tensor {name} is in {tensors[name].file.name} too")
    return GgufHeader(SHARD.sub("", first.name).removesuffix(".gguf"), header.values, tensors)


def shard_paths(path: Path) -> list[Path]:
    """All files of a GGUF model in order; the first has the metadata. Raises `UnreadableModel` for gaps."""
    named = SHARD.search(path.name)
    if named is None:
        return [path]
    count = int(named[2])
    paths = [path.with_name(SHARD.sub(f"-{i:05}-of-{named[2]}", path.name)) for i in range(1, count + 1)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise UnreadableModel(path, f"{len(missing)} of its {count} files are missing, first {missing[0]}")
    return paths


def _read(path: Path, tables: bool) -> GgufHeader:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(path, data, tables).header()
    except (OSError, ValueError) as error:
        if isinstance(error, UnreadableModel):
            raise
        raise UnreadableModel(path, f"can't be read: {error}") from error


class _Walk:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap, tables: bool) -> None:
        self.path, self.data, self.tables = path, data, tables
        self.at = 0

    def header(self) -> GgufHeader:
        try:
            return self._header()
        except struct.error as error:
            raise UnreadableModel(self.path, f"truncated: the header goes on past byte {len(self.data)}") from error
        except UnicodeDecodeError as error:
            raise UnreadableModel(self.path, f"corrupt: a name near byte {self.at} is not UTF-8") from error

    def _header(self) -> GgufHeader:
        if self.data[:4] != _MAGIC:
            raise UnreadableModel(self.path, "not a GGUF file (it doesn't begin with the bytes GGUF)")
        self.at = 4
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise UnreadableModel(self.path, f"GGUF version {version}; accepted: 2 or 3, little-endian")
        tensor_count, value_count = self.integer("Q"), self.integer("Q")
        values: dict[str, object] = {}
        for _ in range(value_count):
            key = self.string()
            if key in values:
                raise UnreadableModel(self.path, f"the key {key} is there twice")
            values[key] = self.value(self.integer("I"))
        entries = [self.entry() for _ in range(tensor_count)]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise UnreadableModel(self.path, f"general.alignment is {alignment!r}; accepted: a power of two")
        return GgufHeader(self.path.stem, values, self.tensors(entries, -(-self.at // alignment) * alignment))

    def scalar(self, code: str) -> object:
        value: object = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def integer(self, code: str) -> int:
        value = self.scalar(code)
        assert isinstance(value, int)
        return value

    def string(self) -> str:
        length = self.integer("Q")
        end = self.at + length
        if end > len(self.data):
            raise struct.error
        text = self.data[self.at : end].decode("utf-8")
        self.at = end
        return text

    def value(self, kind: int) -> object:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise UnreadableModel(self.path, f"a value of unknown type {kind} near byte {self.at}")
        item, length = self.integer("I"), self.integer("Q")
        if length > len(self.data):
            raise struct.error
        if length > _SHORT and not self.tables:
            self.skip(item, length)
            return LongArray(length)
        if item in _SCALARS:
            code = f"<{length}{_SCALARS[item]}"
            numbers = struct.unpack_from(code, self.data, self.at)
            self.at += struct.calcsize(code)
            return numbers
        return tuple(self.value(item) for _ in range(length))

    def skip(self, kind: int, length: int) -> None:
        if kind in _SCALARS:
            self.at += length * struct.calcsize("<" + _SCALARS[kind])
        elif kind == _STRING:
            unpack, at = struct.Struct("<Q").unpack_from, self.at
            for _ in range(length):
                at += 8 + unpack(self.data, at)[0]
            self.at = at
        else:
            for _ in range(length):
                self.value(kind)

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dimensions = self.integer("I")
        if not 1 <= dimensions <= 4:
            raise UnreadableModel(self.path, f"the tensor {name} has {dimensions} dimensions; accepted: 1 to 4")
        shape = tuple(reversed([self.integer("Q") for _ in range(dimensions)]))
        return name, shape, self.integer("I"), self.integer("Q")

    def tensors(self, entries: list[tuple[str, tuple[int, ...], int, int]], start: int) -> dict[str, GgufTensor]:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        tensors: dict[str, GgufTensor] = {}
        for name, shape, number, offset in entries:
            try:
                kind = GGMLQuantizationType(number)
            except ValueError:
                raise UnreadableModel(self.path, f"the tensor {name} has the unknown ggml type {number}") from None
            block, block_bytes = GGML_QUANT_SIZES[kind]
            count = math.prod(shape)
            if name in tensors or count % block:
                raise UnreadableModel(
                    self.path, f"the tensor {name} is there twice or isn't whole blocks of {block}"
                )
            size_bytes = count // block * block_bytes
            if start + offset + size_bytes > len(self.data):
                end = start + offset + size_bytes
                raise UnreadableModel(
                    self.path, f"truncated: the tensor {name} ends at byte {end} of a file of {len(self.data)}"
                )
            tensors[name] = GgufTensor(shape, kind.name, start + offset, size_bytes, self.path)
        return tensors
