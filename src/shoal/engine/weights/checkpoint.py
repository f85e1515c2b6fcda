"""Weights in safetensors files: one, or shards listed by an index.

Layout of a file (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length, a JSON header
{name: {dtype, shape, data_offsets}}, the data. Headers are read and checked against the file's length on opening,
so that a cut download is an error before anything is served.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shoal.engine.errors import WeightsError
from shoal.engine.sources.select import weight_files
from shoal.engine.weights.source import Ranges

INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class SafetensorsSource:
    """The tensors of one or several safetensors files."""

    def __init__(self, files: Mapping[Path, Sequence[str] | None]) -> None:
        """`files` maps a file to the tensors expected of it (None: whatever it holds), in reading order.

        Raises WeightsError naming the file or tensor that is missing, cut short or not safetensors.
        """
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[Path, list[str]] = {}
        self._home: dict[str, Path] = {}
        self._opened: tuple[Path, Any] | None = None
        self.bytes_read = 0
        for path, expected in files.items():
            held = _read_header(path)
            for name in expected or ():
                if name not in held:
                    raise WeightsError("listed in the index but not in the file", file=path, tensor=name)
            self._files[path] = list(held if expected is None else expected)
            self._shapes.update((name, held[name]) for name in self._files[path])
            self._home.update(dict.fromkeys(self._files[path], path))

    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise WeightsError("no such tensor", tensor=name)
        return self._shapes[name]

    def read(self, name: str, ranges: Ranges = ()) -> Tensor:
        """See `WeightSource.read`: only the pages of the part are touched."""
        self.shape(name)
        path = self._home[name]
        with _readable(path):
            # The last file stays mapped: tensors are mostly asked for in the order of the files.
            if self._opened is None or self._opened[0] != path:
                self._opened = (path, safe_open(str(path), framework="pt"))
            file = self._opened[1]
            if not ranges:
                tensor: Tensor = file.get_tensor(name)
            else:
                tensor = file.get_slice(name)[tuple(slice(r.start, r.stop) for r in ranges)]
        self.bytes_read += tensor.nbytes
        return tensor

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name in self._shapes:
            yield name, self.read(name)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise WeightsError(f"not readable: {error}", file=path) from error


def open_directory(directory: Path) -> SafetensorsSource:
    """The checkpoint in a directory: its index if it has one, else all its safetensors files."""
    index = directory / INDEX
    if index.is_file():
        return SafetensorsSource(_listed(index))
    # Beside them may lie the same weights in a vendor's own names: consolidated.safetensors (vllm#40765).
    present = [path.name for path in directory.glob("*.safetensors")]
    files = [directory / name for name in weight_files(present) or sorted(present)]
    if not files:
        raise WeightsError(
            "no *.safetensors in it; accepted: safetensors (one file or shards) or GGUF", file=directory
        )
    return SafetensorsSource(dict.fromkeys(files))


def _listed(index: Path) -> dict[Path, list[str]]:
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.MsgspecError as error:
        raise WeightsError(f"not a safetensors index: {error}", file=index) from error
    files: dict[Path, list[str]] = {}
    for name, file in weight_map.items():
        if Path(file).name != file:
            raise WeightsError(f"{file!r} is not a plain file name beside the index", file=index, tensor=name)
        files.setdefault(index.parent / file, []).append(name)
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise WeightsError(f"{len(absent)} of {len(files)} shards are missing: {', '.join(absent)}", file=index)
    return files


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's tensors. Raises WeightsError unless its length is what the header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise WeightsError(f"not a safetensors file (or cut short): {size} bytes", file=path)
        if size < 8 + length:
            raise WeightsError(f"cut short: {size} bytes, its header alone takes {8 + length}", file=path)
        raw = file.read(length)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        entries = msgspec.convert(header, dict[str, _Entry])
    except (ValueError, AttributeError, msgspec.ValidationError) as error:
        raise WeightsError(f"its header is not readable: {error}", file=path) from error
    end = 8 + length + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != end:
        what = "cut short" if size < end else "too long"
        raise WeightsError(f"{what}: {size} bytes, its header says {end}", file=path)
    return {name: entry.shape for name, entry in entries.items()}
